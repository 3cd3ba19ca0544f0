// What a training run goes on from: a file for each checkpoint in one folder, or, where each of several processes has a
// part of the model, a file of each and an index beside them, as of sharded weights (tensor_set.h). Used by both
// languages' front ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/together.h"
#include "model/trained_state.h"

namespace abele::host {

struct Checkpoint {
  int64_t step = 0;
  StoredTensors weights;
  TrainedState state;
  std::map<std::string, std::string> texts;  // what else the front end wants back, by name
  std::map<std::string, at::Tensor> tensors;
};

/// The number that such a text is: digits only. None for any other text.
std::optional<int64_t> countOf(std::string_view text);
/// The file of a step in a folder, or the index of its files, where there is one.
std::string checkpointPath(const std::string& folder, int64_t step);
/// Steps that the folder has checkpoints of, ascending; none where there is no such folder.
std::vector<int64_t> checkpointSteps(const std::string& folder);
/// Replaces one of the same step; then removes all but the last `keep` steps. Throws E0702, E0712; the others stay
/// then. Returns: its path.
std::string writeCheckpoint(const std::string& folder, const Checkpoint& checkpoint, int64_t keep);
/// The same by all processes: the first `parts` write what is theirs (StoredTensor::process), and the first of these
/// the rest. It is a checkpoint when its index is there, which comes last. Throws in all processes where one cannot
/// write; E0606, E0713.
std::string writeParts(const std::string& folder, const Checkpoint& checkpoint, int64_t keep, int64_t process,
                       int64_t parts, const Together& together);
/// Parts as of writeParts beside a file that names their index, in its folder; before: "model.poptorch-MARK". write:
/// called in the first process with the name of the index, when all is written, writes that file. Then parts that an
/// earlier file of the path had are removed. Throws as writeParts.
void writePartsBeside(const std::string& path, const Checkpoint& checkpoint, int64_t process, int64_t parts,
                      const Together& together, const std::function<void(const std::string& index)>& write);
/// Removes parts beside a file, but those with this mark.
void removePartsBeside(const std::string& path, const std::string& mark = {});
/// Reads weights and the optimizer's state when somebody asks for them; they are the files that are there now, whatever
/// their names become. Throws E0712 where there is none or where a part cannot be read, E0501 for a file that is
/// damaged or no checkpoint.
Checkpoint readCheckpoint(const std::string& path);
/// Reads the part-th of `parts` shares of what was not read, and throws E0501, E0712 where it is damaged.
void requireWhole(const Checkpoint& checkpoint, int64_t part, int64_t parts);

}  // namespace abele::host
