// Fields of a .poptorch file, sealed as a writer would: read, or E0501.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "exe/bytes.h"
#include "host/compiled_program.h"
#include "host/program_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const std::string_view fields(reinterpret_cast<const char*>(data), size);
    const host::ProgramFile file =
        host::decodeProgramFile(exe::seal(host::kProgramFileMagic, host::kProgramFileVersion, fields));
    host::decodeProgram(file.program);
  } catch (const UserError&) {
  }
  return 0;
}
