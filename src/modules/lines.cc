#include "modules/lines.h"

#include <string_view>

#include "base/cat.h"

namespace abele::modules {

std::string& currentLine() {
  thread_local std::string line;
  return line;
}

std::string textOf(const std::source_location& line) {
  const std::string_view file = line.file_name();
  return cat(file.substr(file.rfind('/') + 1), ":", line.line());
}

}  // namespace abele::modules
