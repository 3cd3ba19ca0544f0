#include "host/program_file.h"

#include <filesystem>

#include "base/error.h"
#include "exe/bytes.h"
#include "host/tensor_bytes.h"
#include "host/whole_file.h"

namespace abele::host {

template <class A>
void visitFile(A& a, ProgramFile& x) {
  a(x.version);
  a(x.metadata);
  a(x.program);
  a(x.has_model);
  const uint64_t tensors = a.count(x.tensors.size());
  x.tensors.resize(tensors);
  for (SavedTensor& saved : x.tensors) {
    a(saved.name);
    visitTensor(a, saved.tensor);
    a(saved.is_parameter);
  }
  const uint64_t states = a.count(x.optimizer_state.size());
  if constexpr (A::kReads) {
    for (uint64_t i = 0; i < states; ++i) {
      std::string name;
      a(name);
      visitTensor(a, x.optimizer_state[name]);
    }
  } else {
    for (auto& [name, tensor] : x.optimizer_state) {
      std::string copy = name;
      a(copy);
      visitTensor(a, tensor);
    }
  }
  visitTensor(a, x.rng_state);
}

namespace {

constexpr const char* kMagic = "ABELEPTF";
constexpr uint32_t kVersion = 1;

}  // namespace

void writeProgramFile(const std::string& path, const ProgramFile& file) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  exe::Writer payload;
  // The fields are described once, for reading and writing, hence not const; a Writer changes nothing.
  visitFile(payload, const_cast<ProgramFile&>(file));
  writeWholeFile(path, exe::seal(kMagic, kVersion, payload.take()));
}

ProgramFile readProgramFile(const std::string& path) {
  const std::string bytes = readWholeFile(path);
  exe::Reader reader(exe::unseal(kMagic, kVersion, bytes, "a file that save() wrote"));
  ProgramFile file;
  visitFile(reader, file);
  if (!reader.atEnd()) exe::reject("bytes behind the end");
  return file;
}

}  // namespace abele::host
