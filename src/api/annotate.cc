// The public annotations, in terms of capture's.
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include "abele/annotate.h"
#include "capture/annotate.h"
#include "modules/lines.h"
#include "modules/placed_modules.h"

namespace abele {
void beginBlock(const std::string& user_id, const DeviceList& ipu_id, const std::source_location& line) {
  if (!capture::isCapturing()) return;
  modules::currentLine() = modules::textOf(line);
  capture::beginBlock(user_id.empty() ? capture::nextAutoBlockId() : user_id, ipu_id.devices());
}

Block::Block(const std::string& user_id, const DeviceList& ipu_id, const std::source_location& line)
    : line_before_(modules::currentLine()) {
  ++modules::openBlocks();
  beginBlock(user_id, ipu_id, line);
}
Block::~Block() {
  --modules::openBlocks();
  if (!capture::isCapturing()) return;
  capture::endBlock();
  modules::currentLine() = line_before_;
}
void Block::start(const std::string& user_id, const DeviceList& ipu_id, const std::source_location& line) {
  beginBlock(user_id, ipu_id, line);
}
void Block::useAutoId() { capture::resetAutoBlockId(); }

NameScope::NameScope(const std::string& name, const std::source_location& line) {
  if (!capture::isCapturing()) return;
  line_before_ = std::exchange(modules::currentLine(), modules::textOf(line));
  capture::pushScope(name);
}
NameScope::~NameScope() {
  if (!capture::isCapturing()) return;
  capture::popScope();
  modules::currentLine() = line_before_;
}

at::Tensor identityLoss(const at::Tensor& loss, Reduction reduction) {
  at::Tensor reduced = reduction == Reduction::kMean  ? at::mean(loss)
                       : reduction == Reduction::kSum ? at::sum(loss)
                                                      : loss.clone();
  capture::markLoss(reduced);
  return reduced;
}

at::Tensor recomputationCheckpoint(const at::Tensor& tensor) {
  capture::keepValue(tensor);
  return tensor;
}

bool isRunningOnDevice() { return capture::isCapturing(); }

}  // namespace abele
