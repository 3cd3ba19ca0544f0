#include <limits>

#include "abele/model.h"

namespace abele {

int64_t DeviceMemory::spareBytes() const {
  return limit_bytes ? *limit_bytes - peak_bytes : std::numeric_limits<int64_t>::max();
}

}  // namespace abele
