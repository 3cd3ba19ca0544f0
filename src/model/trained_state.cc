#include "model/trained_state.h"

#include "base/error.h"
#include "compile/tensors.h"

namespace abele::host {

TrainedState trainedState(const Session& session) {
  return {.optimizer_state = session.optimizerState(), .rng_state = session.rngState()};
}

void takeOver(Session& session, const TrainedState& state) {
  const at::Tensor before = session.rngState();
  if (state.rng_state.defined()) setRandomState(session, state.rng_state);
  try {
    session.setOptimizerState(state.optimizer_state);
  } catch (...) {
    session.setRngState(before);
    throw;
  }
}

void setRandomState(Session& session, const at::Tensor& state) {
  const at::Tensor now = session.rngState();
  const auto refuse = [&] {
    throwUser(ErrorCode::E0708, {.what = "this is no state of a random stream",
                                 .found = state.defined() ? typeOf(state).str() : "an undefined tensor",
                                 .expected = typeOf(now).str(),
                                 .remedy = "pass what rngState() returned"});
  };
  if (!state.defined() || state.scalar_type() != now.scalar_type()) refuse();
  try {
    session.setRngState(state);  // with or without a part for stochastic rounding
  } catch (const c10::Error&) {
    refuse();
  }
}

}  // namespace abele::host
