// The parts of exe::verify that use ids as indices. Private to exe/.
#pragma once

#include <string>
#include <vector>

#include "base/cat.h"
#include "exe/executable.h"

namespace abele::exe {

/// Base of classes that collect findings.
class Finder {
 protected:
  explicit Finder(std::vector<std::string>& findings) : findings_(findings) {}
  /// Adds a finding if the condition does not hold. Returns the condition.
  template <class... Parts>
  bool require(bool condition, const Parts&... parts) {
    if (!condition) findings_.push_back(cat(parts...));
    return condition;
  }

  std::vector<std::string>& findings_;
};

/// Checks the arguments of our own instructions ("abele::...") against their rows (base/instructions.h): kinds, numbers
/// and types. Requires: all ids are good.
void checkOwnInstructions(const Executable& executable, std::vector<std::string>& findings);

/// Checks the lists of actions. Each task runs once, on one worker and with that worker's memory, and no action waits
/// forever.
/// Requires: all ids are good.
void checkActions(const Executable& executable, std::vector<std::string>& findings);

}  // namespace abele::exe
