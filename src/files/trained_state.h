// The devices' state of a model in training, apart from its weights: read from a session, and set in one.
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
/// Number of updates that made a state: the largest step count of a parameter; 1 if the state has no step count.
int64_t updatesOf(const TrainedState& state);
/// Throws E0706, E0708, and then does not change the session.
void takeOver(session::Session& session, const TrainedState& state);
/// Throws E0708 for a tensor that is not the state of a random stream.
void setRandomState(session::Session& session, const at::Tensor& state);

}  // namespace abele::files
