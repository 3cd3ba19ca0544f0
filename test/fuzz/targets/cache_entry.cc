// Fields of a compiled program, as an entry of the cache has them, sealed as a writer would: read, or E0501; what is
// read is written as the same bytes.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "exe/bytes.h"
#include "host/compiled_program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const std::string bytes = exe::seal(host::kProgramMagic.data(), host::kProgramVersion,
                                        std::string_view(reinterpret_cast<const char*>(data), size));
    host::encode(host::decodeProgram(bytes));
  } catch (const UserError&) {
  }
  return 0;
}
