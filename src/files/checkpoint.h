// The files that a training run resumes from: one file per checkpoint in a folder. If each of several processes has a
// part of the model, each writes a file, with an index beside them as for sharded weights (tensor_set.h). Used by the
// front ends of both languages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "files/together.h"
#include "files/trained_state.h"

namespace abele::files {

struct Checkpoint {
  int64_t step = 0;
  session::StoredTensors weights;
  TrainedState state;
  std::map<std::string, std::string> texts;  // other texts of the front end, by name
  std::map<std::string, at::Tensor> tensors;
};

/// The number in a text of digits; nothing for any other text.
std::optional<int64_t> countOf(std::string_view text);
/// The file of a step in a folder, or the index of its files if there is one.
std::string checkpointPath(const std::string& folder, int64_t step);
/// The steps whose checkpoints are in the folder, ascending; empty if the folder is missing.
std::vector<int64_t> checkpointSteps(const std::string& folder);
/// Replaces a checkpoint of the same step, then removes all but the last `keep` steps. Throws E0702, E0712; in that
/// case removes nothing. Returns: the path of the checkpoint.
std::string writeCheckpoint(const std::string& folder, const Checkpoint& checkpoint, int64_t keep);
/// The same for several processes: each of the first `parts` writes its own tensors (StoredTensor::process), and the
/// first one also the rest. The index comes last and makes the files a checkpoint. Throws E0712 in all processes if one
/// of them cannot write; E0606, E0713.
std::string writeParts(const std::string& folder, const Checkpoint& checkpoint, int64_t keep, int64_t process,
                       int64_t parts, const Together& together);
/// Writes parts like writeParts, but beside a file in the same folder: "model.poptorch-MARK...". write: the first
/// process calls it with the name of the index after all parts are written; it writes the file. Then removes the parts
/// of an earlier file of the same path. Throws the errors of writeParts.
void writePartsBeside(const std::string& path, const Checkpoint& checkpoint, int64_t process, int64_t parts,
                      const Together& together, const std::function<void(const std::string& index)>& write);
/// Removes parts beside a file, except those with this mark.
void removePartsBeside(const std::string& path, const std::string& mark = {});
/// Weights and the optimizer's state are read later, when they are requested, but from the files that exist now, even
/// if they are renamed. Throws E0712 if a file is missing or cannot be read, E0501 if it is damaged or not a
/// checkpoint.
Checkpoint readCheckpoint(const std::string& path);
/// Divides the data that was not read yet into `parts` shares and checks share number `part`. Throws E0501 if it is
/// damaged, E0712.
void requireWhole(const Checkpoint& checkpoint, int64_t part, int64_t parts);

}  // namespace abele::files
