#include "collective/measured_link.h"

#include <algorithm>
#include <chrono>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace abele::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Messages between stages of a program have these sizes.
constexpr int64_t kShortBytes = 64, kLongBytes = int64_t{1} << 20;
constexpr int kShortMessages = 200, kLongMessages = 20;

// The time of a message to the other end and back. Other programs on the machine only make a message slower, so the
// fastest one counts.
int64_t roundTripNs(Peers& peers, int64_t with, bool starts, int64_t bytes, int times) {
  const at::Tensor memory = at::zeros({bytes}, at::kByte);
  int64_t fastest = 0;
  for (int i = 0; i < times; ++i) {
    const Clock::time_point start = Clock::now();
    if (starts) peers.sendOn(Peers::kMeasuredLink, memory, with);
    peers.receiveOn(Peers::kMeasuredLink, memory, with);
    if (!starts) peers.sendOn(Peers::kMeasuredLink, memory, with);
    const int64_t ns = std::chrono::nanoseconds(Clock::now() - start).count();
    fastest = i == 0 ? ns : std::min(fastest, ns);
  }
  return fastest;
}

LinkTime measureLink(Peers& peers, int64_t with, bool starts) {
  roundTripNs(peers, with, starts, kLongBytes, 1);  // the first message lets the ends agree on their transport
  const int64_t short_ns = roundTripNs(peers, with, starts, kShortBytes, kShortMessages) / 2;
  const int64_t long_ns = roundTripNs(peers, with, starts, kLongBytes, kLongMessages) / 2;
  return starts ? linkTimeOf(short_ns, long_ns, kLongBytes) : LinkTime{};
}

}  // namespace

LinkTime measureLinkToNext(Peers& peers) {
  LinkTime found;
  const int64_t own = peers.process();
  for (int64_t turn = 0; turn < 2; ++turn) {
    const bool starts = own % 2 == turn;
    const int64_t with = starts ? own + 1 : own - 1;
    if (with < 0 || with >= peers.processes()) continue;
    const LinkTime measured = measureLink(peers, with, starts);
    if (starts) found = measured;
  }
  return found;
}

}  // namespace abele::collective
