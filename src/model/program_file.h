// A .poptorch file: a compiled program and the state to go on from. Written by save(), read by load(), in Python and in
// C++. Docs: docs/executable.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "compile/replica_groups.h"
#include "exe/executable.h"

namespace abele::host {

struct SavedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

struct ProgramFile {
  std::string version;            // of the package that wrote it
  std::string options;            // that it was compiled with, as JSON (options/run_time.h); empty: nobody said
  std::string metadata;           // the front end's own, plain data; Abele does not look at it
  std::string objects;            // Python: a pickle of the module, which runs code when it is read
  std::string program;            // encode(CompiledProgram)
  std::string form, result_form;  // of the program's arguments and results (model/forms.h)
  bool has_model = false;         // tensors and optimizer_state are there, or where parts says
  /// The name of an index beside the file, a checkpoint's (checkpoint.h), where each of several processes wrote the
  /// part of the model that it has; tensors and optimizer_state are empty then. Else empty.
  std::string parts;
  std::vector<SavedTensor> tensors;  // parameters, then buffers
  std::map<std::string, at::Tensor> optimizer_state;
  at::Tensor rng_state;  // undefined when it was not saved
};

/// The file that save(path) writes: in a folder it is model.poptorch.
std::string fileToSave(const std::string& path);

/// How often the program of a file runs, and on how much: what it fixes of a model's options.
struct ProgramCounts {
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  int64_t replicas = 1;
  int64_t input_group_size = 1;
  CommGroup input_grouping = CommGroup::kConsecutive;
};
ProgramCounts countsOf(const exe::Executable& executable);

/// Where the index of a file's parts lies. Requires: it has some.
std::string partsOf(const std::string& path, const ProgramFile& file);
/// Makes missing folders. Throws E0712 when the file cannot be written.
void writeProgramFile(const std::string& path, const ProgramFile& file);
/// What fn returns. Its errors say the file, where they say no place.
template <class Fn>
auto ofFile(const std::string& path, const Fn& fn) {
  try {
    return fn();
  } catch (const UserError& error) {
    Message message = error.message();
    if (!message.at.empty()) throw;
    message.at = path;
    throw UserError(error.code(), std::move(message));
  }
}
/// Throws E0712 when the file cannot be read, E0501 when it is something else or damaged. Runs nothing of it.
ProgramFile readProgramFile(const std::string& path);
/// Its bytes; the same fields give the same bytes. decode throws E0501 for anything else than what encode made of
/// fields that belong together.
std::string encode(const ProgramFile& file);
ProgramFile decodeProgramFile(std::string_view bytes);

inline constexpr const char* kProgramFileMagic = "ABELEPTF";
inline constexpr uint32_t kProgramFileVersion = 5;

}  // namespace abele::host
