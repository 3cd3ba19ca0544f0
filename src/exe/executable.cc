#include "exe/executable.h"

#include <algorithm>

namespace abele::exe {
const char* directionName(Direction d) {
  static constexpr const char* kNames[] = {"forward", "backward", "weight-gradient", "update"};
  return kNames[static_cast<int>(d)];
}

int64_t Executable::inputParts() const {
  return input_part.empty() ? 1 : 1 + *std::max_element(input_part.begin(), input_part.end());
}

}  // namespace abele::exe
