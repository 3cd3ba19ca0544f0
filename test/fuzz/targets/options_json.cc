// JSON of options: applied, or E07xx; what is applied is written and applied again.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "options/store.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  Options::Values values;
  try {
    abele::options::applyJson(values, std::string(reinterpret_cast<const char*>(data), size));
    ++test::taken;
  } catch (const UserError&) {
  }
  abele::options::toText(values);
  return 0;
}
