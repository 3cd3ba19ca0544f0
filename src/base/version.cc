#include "base/version.h"

namespace abele {

const char* versionText() { return ABELE_VERSION; }

}  // namespace abele
