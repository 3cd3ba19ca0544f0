// A configuration file: applied, or E07xx.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "options/store.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  abele::Options::Values values;
  try {
    abele::options::applyConfigText(values, std::string(reinterpret_cast<const char*>(data), size), "fuzz.conf");
    ++abele::test::taken;
  } catch (const abele::UserError&) {
  }
  abele::options::toJson(values);
  return 0;
}
