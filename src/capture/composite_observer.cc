#include "capture/composite_observer.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "capture/arguments.h"
#include "capture/linear_layers.h"
#include "capture/recorder.h"

namespace abele::capture {
namespace {

bool isLoss(std::string_view op) {
  static constexpr std::string_view names[] = {
#define ABELE_LOSS(name) name,
#include "capture/losses.def"
#undef ABELE_LOSS
  };
  return std::ranges::find(names, op) != std::end(names);
}

struct RawRead {
  std::string_view name, overload;
  std::vector<size_t> operands;
};

const RawRead* rawRead(const at::RecordFunction& function) {
  static const RawRead table[] = {
#define ABELE_RAW_READ(name, overload, ...) {name, overload, {__VA_ARGS__}},
#include "capture/raw_reads.def"
#undef ABELE_RAW_READ
  };
  for (const RawRead& row : table) {
    const auto name = row.name == function.name() ? function.operator_name() : std::nullopt;
    if (name && name->overload_name == row.overload) return &row;
  }
  return nullptr;
}

/// one_hot reads the largest class only to compare it with the number of classes that the program gives; istft reads
/// its window's least overlap only to refuse it.
struct AllowedReads final : at::ObserverContext {
  explicit AllowedReads(Recorder* r) : recorder(r) { recorder->reads().allow(true); }
  ~AllowedReads() override { recorder->reads().allow(false); }
  Recorder* recorder;
};

/// With smoothed labels it adds up the weights of the classes that are not ignored.
struct CrossEntropy final : at::ObserverContext {
  explicit CrossEntropy(Recorder* r) : recorder(r) { recorder->rewrites().sumChosen(true); }
  ~CrossEntropy() override { recorder->rewrites().sumChosen(false); }
  Recorder* recorder;
};

struct LinearLayer final : public at::ObserverContext {
  explicit LinearLayer(at::ScalarType type) { linearTypes().push_back(type); }
  ~LinearLayer() override { linearTypes().pop_back(); }
};

std::unique_ptr<at::ObserverContext> beforeLinear(const c10::ArrayRef<const c10::IValue>& inputs) {
  if (inputs.empty() || !inputs[0].isTensor() || !inputs[0].toTensor().defined()) return nullptr;
  if (!inputs[0].toTensor().is_floating_point()) return nullptr;
  return std::make_unique<LinearLayer>(inputs[0].toTensor().scalar_type());
}

/// LibTorch's and Python's "batchmean" divide the sum that kl_div returns by the number of rows.
struct SummedLoss final : public at::ObserverContext {
  explicit SummedLoss(int64_t n) : rows(n) {}
  int64_t rows;
};
struct MeanOfLoss final : public at::ObserverContext {};

std::unique_ptr<at::ObserverContext> beforeSum(c10::ArrayRef<const c10::IValue> inputs) {
  const bool sums = inputs.size() == 4 && inputs[0].isTensor() && inputs[2].isInt() &&
                    inputs[2].toInt() == at::Reduction::Sum && inputs[0].toTensor().dim() > 0;
  return sums ? std::make_unique<SummedLoss>(inputs[0].toTensor().size(0)) : nullptr;
}

std::unique_ptr<at::ObserverContext> beforeDivision(const Recorder& recorder, c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() != 2 || !inputs[0].isTensor() || !inputs[1].isScalar()) return nullptr;
  const bool is_mean = recorder.losses().isSumOver(inputs[0].toTensor(), inputs[1].toScalar().toDouble());
  return is_mean ? std::make_unique<MeanOfLoss>() : nullptr;
}

std::unique_ptr<at::ObserverContext> beforeComposite(const at::RecordFunction& function) {
  Recorder* recorder = currentRecorder();
  if (recorder == nullptr || recorder->isInsideOperator()) return nullptr;
  const c10::ArrayRef<const c10::IValue> inputs = inputsOf(function);
  recorder->requireKnownMemory(inputs);
  const std::string_view name = function.name();
  const bool has_classes = name == "aten::one_hot" && inputs.size() == 2 && inputs[1].isInt() && inputs[1].toInt() >= 0;
  if (has_classes || name == "aten::istft") return std::make_unique<AllowedReads>(recorder);
  if (name == "aten::cross_entropy_loss") return std::make_unique<CrossEntropy>(recorder);
  if (name == "aten::kl_div") return beforeSum(inputs);
  if (name == "aten::div") return beforeDivision(*recorder, inputs);
  if (name == "aten::linear") return beforeLinear(inputs);
  const RawRead* read = rawRead(function);
  if (read == nullptr) return nullptr;
  try {
    for (size_t operand : read->operands)
      if (operand < inputs.size() && inputs[operand].isTensor())
        recorder->readMemory(inputs[operand].toTensor(), function.name());
  } catch (const std::exception&) {
    // Kept by the recorder.
  }
  return nullptr;
}

void afterComposite(const at::RecordFunction& function, at::ObserverContext* context) {
  Recorder* recorder = currentRecorder();
  const bool is_mean = dynamic_cast<MeanOfLoss*>(context) != nullptr;
  if (recorder == nullptr || recorder->isInsideOperator() || !(is_mean || isLoss(function.name()))) return;
  const auto& outputs = function.outputs();
  if (outputs.empty() || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
  try {
    const auto* sum = dynamic_cast<SummedLoss*>(context);
    recorder->markLoss(outputs[0].toTensor(), sum ? sum->rows : 0);
  } catch (const std::exception&) {
    // Kept by the recorder.
  }
}

}  // namespace

CompositeObserver::CompositeObserver()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(beforeComposite, afterComposite)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

CompositeObserver::~CompositeObserver() { at::removeCallback(handle_); }

}  // namespace abele::capture
