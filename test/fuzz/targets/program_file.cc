// Fields of a .poptorch file, sealed as a writer would with the program and the executable inside: read, or E0501; what
// is read is written as the same bytes, and its forms match themselves.
#include "model/program_file.h"
#include "base/error.h"
#include "model/forms.h"
#include "sealed_program.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  std::string fields(reinterpret_cast<const char*>(data), size);
  test::resealProgram(fields.data(), size);
  const std::string bytes = exe::seal(host::kProgramFileMagic, host::kProgramFileVersion, fields);
  try {
    const host::ProgramFile file = host::decodeProgramFile(bytes);
    ABELE_CHECK(host::encode(file) == bytes, "other bytes are written than were read");
    host::tensorOrder(file.form, file.form);
    host::tensorOrder(file.form, file.result_form);
    host::decodeProgram(file.program);
    ++test::taken;
  } catch (const UserError&) {
  }
  return 0;
}
