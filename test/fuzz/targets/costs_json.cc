// JSON of costs: read, or E0404; what is read is written and read again as the same.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "plan/predict.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const plan::Chain chain = plan::parseChain(std::string(reinterpret_cast<const char*>(data), size));
    ++test::taken;
    if (chain.costs.stages.size() > 1000) return 0;  // takes too long
    const std::string text = plan::chainJson(chain);
    ABELE_CHECK(plan::chainJson(plan::parseChain(text)) == text, "other costs are read than were written");
  } catch (const UserError&) {
  }
  return 0;
}
