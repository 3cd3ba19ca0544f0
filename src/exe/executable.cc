#include "exe/executable.h"

#include <algorithm>

namespace abele::exe {
const char* directionName(Direction d) {
  static constexpr const char* kNames[] = {"forward", "backward", "weight-gradient", "update"};
  return kNames[static_cast<int>(d)];
}

int64_t Executable::numComputing() const {
  return std::count_if(workers.begin(), workers.end(), [](const WorkerProgram& w) { return !w.isLink(); });
}

int32_t Executable::processOf(int32_t group) const {
  const int32_t worker = groups[static_cast<size_t>(group)].worker;
  return worker < 0 ? -1 : workers[static_cast<size_t>(worker)].process;
}

std::vector<int32_t> slotsOf(const Executable& executable, const External& external, int32_t replica) {
  std::vector<int32_t> slots{external.slotOf(replica)};
  for (auto c = static_cast<size_t>(replica); c < external.copies.size(); c += static_cast<size_t>(executable.replicas))
    slots.push_back(external.copies[c]);
  return slots;
}

int64_t Executable::inputParts() const {
  return input_part.empty() ? 1 : 1 + *std::max_element(input_part.begin(), input_part.end());
}

}  // namespace abele::exe
