// The devices' state of a training except weights, which is read from a session or set in one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "session/session.h"

namespace abele::files {

struct TrainedState {
  session::StoredTensors optimizer_state;  // Session::storedState
  at::Tensor rng_state;                    // Session::rngState; undefined: keep the present one
};

TrainedState trainedState(const session::Session& session);
/// Number of updates so far: the largest step count of a parameter; 1 if the state has no step count.
int64_t updatesOf(const TrainedState& state);
/// Sets the state in a session. Throws E0706, E0708, without a change to the session.
void takeOver(session::Session& session, const TrainedState& state);
/// Throws E0708 for a tensor that is not the state of a random stream.
void setRandomState(session::Session& session, const at::Tensor& state);

}  // namespace abele::files
