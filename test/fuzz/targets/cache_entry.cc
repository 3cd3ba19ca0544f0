// Fields of a compiled program, as an entry of the cache has them, sealed as a writer would with the executable inside:
// read, or E0501; what is read is written as the same bytes.
#include "base/error.h"
#include "sealed_program.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  std::string fields(reinterpret_cast<const char*>(data), size);
  test::resealExecutable(fields.data(), size);
  const std::string bytes = exe::seal(abele::compile::kProgramMagic.data(), abele::compile::kProgramVersion, fields);
  try {
    const abele::compile::CompiledProgram program = abele::compile::decodeProgram(bytes);
    ++test::taken;
    if (!abele::compile::callsHost(program))
      ABELE_CHECK(abele::compile::encode(program) == bytes, "other bytes are written than were read");
  } catch (const UserError&) {
  }
  return 0;
}
