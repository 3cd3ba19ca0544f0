// A .poptorch file: a compiled program and the state to resume from. save() writes it, and load() reads it, in Python
// and in C++. Docs: docs/executable.md.
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

namespace abele::files {

struct SavedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

struct ProgramFile {
  std::string version;            // version of the package that wrote it
  std::string options;            // options of the compilation, as JSON (options/run_time.h); empty: unknown
  std::string metadata;           // the front end's own plain data, which Abele does not read
  std::string objects;            // Python: a pickle of the module, which runs code when it is read
  std::string program;            // encode(CompiledProgram)
  std::string form, result_form;  // forms of the program's arguments and results (calls/forms.h)
  bool has_model = false;         // there are tensors and optimizer_state, here or in the files of `parts`
  /// The name of an index beside the file (checkpoint.h), if several processes each wrote their part of the model;
  /// tensors and optimizer_state are then empty. Otherwise empty.
  std::string parts;
  std::vector<SavedTensor> tensors;  // parameters, then buffers
  std::map<std::string, at::Tensor> optimizer_state;
  at::Tensor rng_state;  // undefined if it was not saved
};

/// The file that save(path) writes. If path is a folder, it is model.poptorch in it.
std::string fileToSave(const std::string& path);

/// The options that a compiled program fixes: how often it runs, and on how much data.
struct ProgramCounts {
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  int64_t replicas = 1;
  int64_t input_group_size = 1;
  compile::CommGroup input_grouping = compile::CommGroup::kConsecutive;
};
ProgramCounts countsOf(const exe::Executable& executable);

/// The path of the index of a file's parts. Requires: the file has parts.
std::string partsOf(const std::string& path, const ProgramFile& file);
/// Makes missing folders. Throws E0712 if the file cannot be written.
void writeProgramFile(const std::string& path, const ProgramFile& file);
/// Returns the result of fn. Adds the file's name to errors without a place.
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
/// Throws E0712 if the file cannot be read, E0501 if it is damaged or of another format. Runs no code of the file.
ProgramFile readProgramFile(const std::string& path);
/// Bytes of the fields. Equal fields give equal bytes. decode throws E0501 for bytes that encode did not make, and for
/// fields that contradict each other.
std::string encode(const ProgramFile& file);
ProgramFile decodeProgramFile(std::string_view bytes);

inline constexpr const char* kProgramFileMagic = "ABELEPTF";
inline constexpr uint32_t kProgramFileVersion = 5;

}  // namespace abele::files
