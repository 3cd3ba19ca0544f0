#include "host/program_file.h"

#include <filesystem>

#include "base/error.h"
#include "base/whole_file.h"
#include "exe/bytes.h"
#include "host/forms.h"
#include "host/tensor_bytes.h"

namespace abele::host {

template <class A>
void visit(A& a, SavedTensor& x) {
  a(x.name);
  visitTensor(a, x.tensor);
  a(x.is_parameter);
}

template <class A>
void visitFile(A& a, ProgramFile& x) {
  a(x.version);
  a(x.metadata);
  a(x.objects);
  a(x.program);
  a(x.form);
  a(x.result_form);
  a(x.has_model);
  visit(a, x.tensors);
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

void writeProgramFile(const std::string& path, const ProgramFile& file) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  for (const std::string* form : {&file.form, &file.result_form})
    ABELE_REQUIRE(isForm(*form), E0712,
                  {.what = "arguments or results that are nested too deeply for a file", .at = path});
  exe::Writer payload;
  // The fields are described once, for reading and writing, hence not const; a Writer changes nothing.
  visitFile(payload, const_cast<ProgramFile&>(file));
  writeWholeFile(path, exe::seal(kProgramFileMagic, kProgramFileVersion, payload.take()));
}

ProgramFile readProgramFile(const std::string& path) {
  removeLeftovers(std::filesystem::path(path).parent_path());
  return decodeProgramFile(readWholeFile(path, kProgramFileMagic));
}

ProgramFile decodeProgramFile(std::string_view bytes) {
  exe::Reader reader(exe::unseal(kProgramFileMagic, kProgramFileVersion, bytes, "a file that save() wrote"));
  ProgramFile file;
  visitFile(reader, file);
  if (!reader.atEnd()) exe::reject("bytes behind the end");
  for (const std::string* form : {&file.form, &file.result_form})
    if (!isForm(*form)) exe::reject("a structure of arguments or results that is none");
  return file;
}

}  // namespace abele::host
