// JSON of costs: read, or E0404.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "plan/predict.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    abele::plan::parseChain(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const abele::UserError&) {
  }
  return 0;
}
