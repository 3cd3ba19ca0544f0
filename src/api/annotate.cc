// The public annotations, in terms of capture's.
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include "abele/annotate.h"
#include "capture/annotate.h"
#include "model/lines.h"
#include "model/placed_modules.h"

namespace abele {
void beginBlock(const std::string& user_id, int ipu_id, const std::source_location& line) {
  if (!capture::isCapturing()) return;
  host::currentLine() = host::textOf(line);
  capture::beginBlock(user_id.empty() ? capture::nextAutoBlockId() : user_id, ipu_id);
}

Block::Block(const std::string& user_id, int ipu_id, const std::source_location& line)
    : line_before_(host::currentLine()) {
  ++host::openBlocks();
  beginBlock(user_id, ipu_id, line);
}
Block::~Block() {
  --host::openBlocks();
  if (!capture::isCapturing()) return;
  capture::endBlock();
  host::currentLine() = line_before_;
}
void Block::start(const std::string& user_id, int ipu_id, const std::source_location& line) {
  beginBlock(user_id, ipu_id, line);
}
void Block::useAutoId() { capture::resetAutoBlockId(); }

NameScope::NameScope(const std::string& name, const std::source_location& line) {
  if (!capture::isCapturing()) return;
  line_before_ = std::exchange(host::currentLine(), host::textOf(line));
  capture::pushScope(name);
}
NameScope::~NameScope() {
  if (!capture::isCapturing()) return;
  capture::popScope();
  host::currentLine() = line_before_;
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
