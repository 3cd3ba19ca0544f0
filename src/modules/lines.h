// Lines of a C++ program, which has no frames to inspect: the line that wrapped the model, and the line of the present
// block or scope. For model/ and api/.
#pragma once

#include <source_location>
#include <string>
#include <utility>

namespace abele::modules {

/// The line that messages show for operations that this thread captures.
std::string& currentLine();
/// "train.cpp:88".
std::string textOf(const std::source_location& line);

/// While it lives, currentLine() is this line, until a block or a scope begins.
class LineScope {
 public:
  explicit LineScope(std::string line) : before_(std::exchange(currentLine(), std::move(line))) {}
  ~LineScope() { currentLine() = std::move(before_); }
  LineScope(const LineScope&) = delete;
  LineScope& operator=(const LineScope&) = delete;

 private:
  std::string before_;
};

}  // namespace abele::modules
