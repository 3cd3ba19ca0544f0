#include "capture/losses.h"

#include <cstring>
#include <exception>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "capture/recorder.h"

namespace abele::capture {
namespace {

bool isLoss(const char* op) {
  static constexpr const char* names[] = {
#define ABELE_LOSS(name) name,
#include "capture/losses.def"
#undef ABELE_LOSS
  };
  for (const char* name : names)
    if (std::strcmp(name, op) == 0) return true;
  return false;
}

/// Composite losses never reach the dispatch mode, so they are seen where torch's profilers see them.
void afterOperator(const at::RecordFunction& function, at::ObserverContext*) {
  Recorder* recorder = currentRecorder();
  if (recorder == nullptr || recorder->isInsideOperator() || !isLoss(function.name())) return;
  const auto& outputs = function.outputs();
  if (outputs.empty() || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
  try {
    recorder->markLoss(outputs[0].toTensor());
  } catch (const std::exception&) {
    // The recorder keeps its error and capture() throws it; torch would only log it here.
  }
}

}  // namespace

BuiltInLosses::BuiltInLosses()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(
              [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }, afterOperator)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION}))) {}

BuiltInLosses::~BuiltInLosses() { at::removeCallback(handle_); }

}  // namespace abele::capture
