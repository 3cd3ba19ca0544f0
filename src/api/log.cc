// abele::setLogLevel.
#include "base/log.h"
#include "abele/options.h"
#include "base/error.h"

namespace abele {

void setLogLevel(const std::string& level) {
  log::Level parsed = log::Level::kWarn;
  log::Detail detail = log::Detail::kNone;
  ABELE_REQUIRE(log::parseLevel(level, &parsed, &detail), E0702,
                {.what = cat("log level ", level), .expected = "TRACE, DEBUG, INFO, WARN, ERR or OFF"});
  log::setLevel(parsed, detail);
}

}  // namespace abele
