// Bytes of an executable on its devices and off them.
#include <algorithm>
#include <map>

#include "exe/executable.h"

namespace abele::exe {
namespace {

using Frame = std::pair<int32_t, int32_t>;  // group, frame

void add(const std::vector<FrameUse>& uses, const Executable& executable, std::map<Frame, int64_t>& held) {
  for (const FrameUse& use : uses) held[{use.group, use.frame}] = executable.groups[use.group].frame_bytes;
}

int64_t sum(const std::map<Frame, int64_t>& held) {
  int64_t bytes = 0;
  for (const auto& [frame, frame_bytes] : held) bytes += frame_bytes;
  return bytes;
}

}  // namespace

int64_t residentBytes(const Executable& executable, int32_t worker) {
  int64_t bytes = 0;
  for (const Group& g : executable.groups)
    if (g.kind != GroupKind::kInput && g.kind != GroupKind::kOutput && !g.off_chip &&
        (g.worker < 0 ? 0 : g.worker) == worker)
      bytes += g.frames * g.frame_bytes;
  return bytes;
}

int64_t fetchedBytes(const Executable& executable, int32_t worker) {
  const std::vector<Action>& actions = executable.workers[worker].actions;
  std::map<Frame, int64_t> held;
  int64_t most = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    add(actions[i].fetches, executable, held);
    std::map<Frame, int64_t> with_next = held;
    if (executable.fetch_ahead) add(actions[(i + 1) % actions.size()].fetches, executable, with_next);
    most = std::max(most, sum(with_next));
    for (const FrameUse& use : actions[i].releases) held.erase({use.group, use.frame});
  }
  return most;
}

int64_t peakBytes(const Executable& executable, int32_t worker) {
  return residentBytes(executable, worker) + fetchedBytes(executable, worker);
}

int64_t offChipBytes(const Executable& executable) {
  int64_t bytes = 0;
  for (const Group& g : executable.groups)
    if (g.off_chip) bytes += g.frames * g.frame_bytes;
  return bytes;
}

}  // namespace abele::exe
