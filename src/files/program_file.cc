#include "files/program_file.h"

#include <algorithm>
#include <filesystem>

#include <ATen/CPUGeneratorImpl.h>

#include "base/error.h"
#include "base/whole_file.h"
#include "calls/forms.h"
#include "compile/tensor_bytes.h"
#include "device/backend.h"
#include "exe/bytes.h"
#include "options/run_time.h"

namespace abele::files {

template <class A>
void visit(A& a, SavedTensor& x) {
  a(x.name);
  compile::visitTensor(a, x.tensor);
  a(x.is_parameter);
}

template <class A>
void visit(A& a, ProgramFile& x) {
  visitFields(a, x.version, x.options, x.metadata, x.objects, x.program, x.form, x.result_form, x.has_model, x.parts,
              x.tensors);
  exe::visitMap(a, x.optimizer_state, [&](at::Tensor& tensor) { compile::visitTensor(a, tensor); });
  compile::visitTensor(a, x.rng_state);
}

namespace {

/// Returns true if the tensor has the form of Session::rngState.
bool isRandomState(const at::Tensor& state) {
  if (state.scalar_type() != at::kByte || state.dim() != 1) return false;
  at::Generator generator = at::detail::createCPUGenerator();
  const int64_t size = generator.get_state().numel();
  const int64_t rest = state.numel() - size;
  if (rest != 0 && rest != static_cast<int64_t>(sizeof(device::RoundingPosition))) return false;
  try {
    generator.set_state(state.narrow(0, 0, size).clone());
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

/// Checks the rules that readers of the file rely on.
void verify(const ProgramFile& file) {
  options::savedOptions(file.options);
  for (const std::string* form : {&file.form, &file.result_form})
    if (!calls::isForm(*form)) exe::reject("a structure of arguments or results that is none");
  if (!file.has_model && (!file.tensors.empty() || !file.optimizer_state.empty()))
    exe::reject("tensors of a model that is not in the file");
  if (!file.parts.empty()) {
    const bool is_name =
        std::filesystem::path(file.parts).filename() == file.parts && file.parts.find('\0') == file.parts.npos;
    if (!is_name || file.parts == "." || file.parts == "..")
      exe::reject("parts beside the file without a name", file.parts);
    if (!file.has_model || !file.tensors.empty() || !file.optimizer_state.empty())
      exe::reject("a model that is both in the file and in parts beside it");
  }
  for (const SavedTensor& saved : file.tensors)
    if (!saved.tensor.defined()) exe::reject("a tensor without elements of a type", saved.name);
  for (const auto& [name, tensor] : file.optimizer_state)
    if (!tensor.defined()) exe::reject("a tensor without elements of a type", name);
  if (file.rng_state.defined() && !isRandomState(file.rng_state)) exe::reject("a random state that is none");
}

}  // namespace

std::string fileToSave(const std::string& path) {
  std::error_code error;
  const bool is_folder = path.ends_with('/') || std::filesystem::is_directory(path, error);
  return is_folder ? (std::filesystem::path(path) / "model.poptorch").string() : path;
}

std::string partsOf(const std::string& path, const ProgramFile& file) {
  return (std::filesystem::path(path).parent_path() / file.parts).string();
}

ProgramCounts countsOf(const exe::Executable& executable) {
  ProgramCounts counts{.device_iterations = executable.device_iterations,
                       .gradient_accumulation = executable.accumulation,
                       .replicas = executable.replicas};
  const int64_t parts = 1 + (executable.input_part.empty() ? 0 : std::ranges::max(executable.input_part));
  counts.input_group_size = std::max<int64_t>(1, counts.replicas / parts);
  for (int64_t replica = 0; replica < static_cast<int64_t>(executable.input_part.size()); ++replica)
    if (executable.input_part[static_cast<size_t>(replica)] != replica / counts.input_group_size)
      counts.input_grouping = compile::CommGroup::kOrthogonal;
  return counts;
}

void writeProgramFile(const std::string& path, const ProgramFile& file) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  for (const std::string* form : {&file.form, &file.result_form})
    ABELE_REQUIRE(calls::isForm(*form), E0712,
                  {.what = "arguments or results that are nested too deeply for a file", .at = path});
  writeWholeFile(path, encode(file));
}

std::string encode(const ProgramFile& file) { return exe::sealed(kProgramFileMagic, kProgramFileVersion, file); }

ProgramFile readProgramFile(const std::string& path) {
  removeLeftovers(std::filesystem::path(path).parent_path());
  return ofFile(path, [&] { return decodeProgramFile(readWholeFile(path, kProgramFileMagic)); });
}

ProgramFile decodeProgramFile(std::string_view bytes) {
  auto file = exe::unsealed<ProgramFile>(kProgramFileMagic, kProgramFileVersion, bytes, "a file that save() wrote");
  verify(file);
  return file;
}

}  // namespace abele::files
