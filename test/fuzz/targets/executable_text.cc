// Text of an executable: read, or E0501; what is read is printed and read again as the same.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "exe/executable.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const auto read = exe::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    ++test::taken;
    ABELE_CHECK(exe::parse(exe::print(read)) == read, "what was printed reads back as something else");
  } catch (const UserError&) {
  }
  return 0;
}
