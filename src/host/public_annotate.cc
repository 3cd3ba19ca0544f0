// The public annotations, in terms of capture's.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include "abele/annotate.h"
#include "capture/annotate.h"

namespace abele {

void beginBlock(const std::string& user_id, int ipu_id) {
  if (!capture::isCapturing()) return;
  capture::beginBlock(user_id.empty() ? capture::nextAutoBlockId() : user_id, ipu_id);
}

Block::Block(const std::string& user_id, int ipu_id) { beginBlock(user_id, ipu_id); }
Block::~Block() {
  if (capture::isCapturing()) capture::endBlock();
}
void Block::start(const std::string& user_id, int ipu_id) { beginBlock(user_id, ipu_id); }
void Block::useAutoId() { capture::resetAutoBlockId(); }

NameScope::NameScope(const std::string& name) { capture::pushScope(name); }
NameScope::~NameScope() { capture::popScope(); }

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
