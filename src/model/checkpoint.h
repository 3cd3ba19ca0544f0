// What a training run goes on from: a file for each checkpoint in one folder. Used by both languages' front ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/trained_state.h"

namespace abele::host {

struct Checkpoint {
  int64_t step = 0;
  std::map<std::string, at::Tensor> weights;
  TrainedState state;
  std::map<std::string, std::string> texts;  // what else the front end wants back, by name
  std::map<std::string, at::Tensor> tensors;
};

/// The file of a step in a folder.
std::string checkpointPath(const std::string& folder, int64_t step);
/// Steps that the folder has checkpoints of, ascending; none where there is no such folder.
std::vector<int64_t> checkpointSteps(const std::string& folder);
/// Replaces one of the same step; then removes all but the last `keep` steps. Throws E0712; the others stay then.
/// Returns: its path.
std::string writeCheckpoint(const std::string& folder, const Checkpoint& checkpoint, int64_t keep);
/// Throws E0712 where there is none, E0501 for a file that is damaged or no checkpoint.
Checkpoint readCheckpoint(const std::string& path);

}  // namespace abele::host
