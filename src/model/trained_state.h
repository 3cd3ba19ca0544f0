// What the devices of a model in training have beside its weights: read from a session, given back to one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "session/session.h"

namespace abele::host {

struct TrainedState {
  StoredTensors optimizer_state;  // Session::storedState
  at::Tensor rng_state;           // Session::rngState; undefined: keep what there is
};

TrainedState trainedState(const Session& session);
/// How many updates a state comes from: as often as a parameter was stepped; 1 where nothing counts.
int64_t updatesOf(const TrainedState& state);
/// Throws E0706, E0708; the session keeps what it has then.
void takeOver(Session& session, const TrainedState& state);
/// Throws E0708 where this is no state of a random stream.
void setRandomState(Session& session, const at::Tensor& state);

}  // namespace abele::host
