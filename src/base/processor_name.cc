#include "base/processor_name.h"

#include <fstream>
#include <map>

#include "base/cat.h"

namespace abele {

std::string processorName() {
  std::ifstream in("/proc/cpuinfo");
  std::map<std::string, std::string> first;  // fields of the first core, which an empty line ends
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const size_t colon = line.find(':'), end = line.find_last_not_of(" \t", colon - 1);
    if (colon == std::string::npos || colon + 2 > line.size() || end == std::string::npos) continue;
    first.emplace(line.substr(0, end + 1), line.substr(colon + 2));
  }
  const auto field = [&](const char* key) { return first.contains(key) ? first[key] : ""; };
  const std::string name = field("model name"), family = field("cpu family"), model = field("model");
  if (name.empty()) return "unknown processor";
  return family.empty() ? name : cat(name, " (family ", family, ", model ", model, ")");
}

}  // namespace abele
