#include "files/trained_state.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "compile/tensors.h"

namespace abele::files {

TrainedState trainedState(const session::Session& session) {
  return {.optimizer_state = session.storedState(), .rng_state = session.rngState()};
}

int64_t updatesOf(const TrainedState& state) {
  std::optional<int64_t> most;
  for (const auto& [name, value] : state.optimizer_state)
    if (name.starts_with("step/")) most = std::max(most.value_or(0), value.read().item<int64_t>());
  return most.value_or(1);
}

void takeOver(session::Session& session, const TrainedState& state) {
  const at::Tensor before = session.rngState();
  if (state.rng_state.defined()) setRandomState(session, state.rng_state);
  try {
    session.takeStoredState(state.optimizer_state);
  } catch (...) {
    session.setRngState(before);
    throw;
  }
}

void setRandomState(session::Session& session, const at::Tensor& state) {
  const at::Tensor now = session.rngState();
  const auto refuse = [&] {
    throwUser(ErrorCode::E0708, {.what = "this is not the state of a random stream",
                                 .found = state.defined() ? compile::typeOf(state).str() : "an undefined tensor",
                                 .expected = compile::typeOf(now).str(),
                                 .remedy = "pass what rngState() returned"});
  };
  if (!state.defined() || state.scalar_type() != now.scalar_type()) refuse();
  try {
    session.setRngState(state);  // the state may lack the part for stochastic rounding
  } catch (const c10::Error&) {
    refuse();
  }
}

}  // namespace abele::files
