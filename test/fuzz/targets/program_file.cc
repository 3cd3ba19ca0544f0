// Fields of a .poptorch file, sealed as a writer would with the program and the executable inside: read, or E0501; what
// is read is written as the same bytes, and its forms match themselves.
#include "files/program_file.h"
#include "base/error.h"
#include "calls/forms.h"
#include "sealed_program.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  std::string fields(reinterpret_cast<const char*>(data), size);
  test::resealProgram(fields.data(), size);
  const std::string bytes = exe::seal(abele::files::kProgramFileMagic, abele::files::kProgramFileVersion, fields);
  try {
    const abele::files::ProgramFile file = abele::files::decodeProgramFile(bytes);
    ABELE_CHECK(abele::files::encode(file) == bytes, "other bytes are written than were read");
    abele::calls::tensorOrder(file.form, file.form);
    abele::calls::tensorOrder(file.form, file.result_form);
    abele::compile::decodeProgram(file.program);
    ++test::taken;
  } catch (const UserError&) {
  }
  return 0;
}
