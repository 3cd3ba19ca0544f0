// Text of a plan: read, or E0202; what is read is printed and read again as the same.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "plan/plan.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const auto read = plan::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    ++test::taken;
    ABELE_CHECK(plan::parse(plan::print(read)) == read, "what was printed reads back as something else");
  } catch (const UserError&) {
  }
  return 0;
}
