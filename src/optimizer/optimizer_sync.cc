#include "optimizer/optimizer_sync.h"

#include <utility>

#include "base/log.h"

namespace abele::optimizer {

compile::OptimizerSpec OptimizerSync::spec(const std::vector<modules::NamedTensor>& tensors) const {
  return source_ ? source_->spec(tensors) : compile::OptimizerSpec();
}

void OptimizerSync::use(std::shared_ptr<OptimizerSource> source) { source_ = std::move(source); }

void OptimizerSync::set(std::shared_ptr<OptimizerSource> source, const Compiled& compiled) {
  if (constants_) constants_->requireSame(source->constants(compiled.scaling_varies));
  const std::shared_ptr<OptimizerSource> before = std::exchange(source_, source);
  try {
    send(compiled);
  } catch (...) {
    source_ = before;
    throw;
  }
  if (!before || before == source) return;
  // The devices' state is the next one's from now on. Of ours the one before keeps a copy.
  source_ = before;
  const bool is_stale = state() && state()->isStale();
  if (state() && !state()->isOfTorch()) downloadIfStale(compiled);
  source_ = std::move(source);
  if (is_stale && state()) state()->noteStale(/*is_void=*/false);
  warnOfFresh(compiled);
}

void OptimizerSync::warnOfFresh(const Compiled& compiled) {
  const bool is_fresh = state() && state()->isOfTorch() && !state()->isThere();
  if (!is_fresh || updates_ == 0 || has_fresh_ || compiled.session.ownState().empty()) return;
  has_fresh_ = true;
  log::warn(
      "setOptimizer() was given an optimizer that has made no step, and the devices go on with the state (momentum, "
      "step counts) that they have: set numbers in param_groups of the optimizer before, or destroy() the model to "
      "begin with a new state");
}

void OptimizerSync::send(const Compiled& compiled) {
  std::optional<OptimizerSpec> numbers = source_->numbers();
  if (numbers && sent_ && haveSameNumbers(*numbers, *sent_)) return;
  compiled.session.setOptimizer(source_->spec(compiled.tensors()));
  sent_ = std::move(numbers);
}

void OptimizerSync::noteProgram(const Compiled& compiled, bool numbers_vary) {
  constants_.reset();
  sent_.reset();
  if (!source_) return;
  if (!numbers_vary) constants_ = source_->constants(compiled.scaling_varies);
  sent_ = source_->numbers();
}

void OptimizerSync::noteDestroyed() {
  if (state()) state()->noteDestroyed();
  constants_.reset();
  sent_.reset();
}

void OptimizerSync::warnOfUnsent() {
  if (!sent_ || has_unsent_) return;
  const std::optional<OptimizerSpec> now = source_->numbers();
  const std::string name = now ? firstDifference(*sent_, *now) : std::string();
  if (name.empty()) return;
  has_unsent_ = true;
  log::warn(name, " changed on the optimizer, and the device still has the old value: call setOptimizer(optimizer) of ",
            "the executor after such a change");
}

void OptimizerSync::beginStep(const Compiled& compiled) {
  uploadIfNew(compiled);
  warnOfUnsent();
  if (state()) state()->noteBeginOfStep();
}

void OptimizerSync::endStep(int64_t updates) {
  updates_ += updates;
  if (state()) state()->noteEndOfStep();
}

void OptimizerSync::upload(const Compiled& compiled) {
  if (!state()) return;
  const bool is_there = state()->isThere();
  if (is_there) {
    HostState::Taken taken = state()->read(compiled.session.wholeState(), compiled.tensors());
    send(compiled);  // a state has the numbers that it was kept with
    compiled.session.setOptimizerState(taken.tensors);
    if (state()->isOfTorch()) updates_ = taken.updates;
  }
  state()->noteUpload(is_there);
}

void OptimizerSync::uploadIfNew(const Compiled& compiled) {
  if (hasNewState()) upload(compiled);
}

void OptimizerSync::download(const Compiled& compiled) {
  if (state() && compiled.has_devices) state()->write(compiled.session.ownState(), compiled.tensors(), updates_);
}

void OptimizerSync::downloadIfStale(const Compiled& compiled) {
  if (state() && state()->isStale() && !state()->isNew()) download(compiled);  // a new one is the program's wish
}

void OptimizerSync::uploadWithWeights(const Compiled& compiled) {
  if (!state()) return;
  if (!state()->isOfTorch())
    downloadIfStale(compiled);
  else if (state()->isNew() || !state()->isStale())  // torch's own step() may have changed it on the host
    upload(compiled);
}

void OptimizerSync::downloadWithWeights(const Compiled& compiled) {
  if (state() && state()->isOfTorch()) downloadIfStale(compiled);
}

void OptimizerSync::noteOther(int64_t updates, bool is_void) {
  updates_ = updates;
  if (state()) state()->noteStale(is_void);
}

}  // namespace abele::optimizer
