#include "collective/measured_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace abele::collective {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLink = Peers::kMeasuredLink;
constexpr int64_t kEnd = -1;
// Messages between stages of a program have these sizes. The first word gives the number of bytes that follow.
constexpr int64_t kWordBytes = 64, kLeastBytes = int64_t{16} << 10, kMostBytes = int64_t{1} << 20, kGrowth = 4;
constexpr int kShortMessages = 32, kFewestShort = 4, kLongMessages = 3;
constexpr int64_t kEnoughNs = 5'000'000;  // enough time for one size, because a slow network need not be measured often

class Ends {
 public:
  Ends(Peers& peers, int64_t other) : peers_(peers), other_(other), word_(at::empty({kWordBytes}, at::kByte)) {}

  /// The time of a message to the other end and its answer.
  int64_t roundTripNs(int64_t bytes) {
    const at::Tensor sent = bytes > 0 ? memory(bytes) : at::Tensor();
    const Clock::time_point start = Clock::now();
    tell(bytes);
    if (bytes > 0) peers_.sendOn(kLink, sent, other_);
    hear();
    return std::chrono::nanoseconds(Clock::now() - start).count();
  }
  void end() { tell(kEnd); }

  void answer() {
    for (int64_t bytes = hear(); bytes != kEnd; bytes = hear()) {
      if (bytes > 0) peers_.receiveOn(kLink, memory(bytes), other_);
      tell(0);
    }
  }

 private:
  void tell(int64_t bytes) {
    std::memcpy(word_.mutable_data_ptr(), &bytes, sizeof bytes);
    peers_.sendOn(kLink, word_, other_);
  }
  int64_t hear() {
    int64_t bytes = 0;
    peers_.receiveOn(kLink, word_, other_);
    std::memcpy(&bytes, word_.const_data_ptr(), sizeof bytes);
    return bytes;
  }
  at::Tensor memory(int64_t bytes) {
    if (!memory_.defined() || memory_.numel() < bytes) memory_ = at::zeros({bytes}, at::kByte);
    return memory_.narrow(0, 0, bytes);
  }

  Peers& peers_;
  int64_t other_;
  at::Tensor word_, memory_;
};

// Other programs on the machine only make a message slower, so the fastest one counts.
template <class Fn>
int64_t fastestNs(int most, int fewest, Fn&& takes) {
  int64_t fastest = takes(), sum = fastest;
  for (int i = 1; i < most && (i < fewest || sum < kEnoughNs); ++i) {
    const int64_t ns = takes();
    fastest = std::min(fastest, ns);
    sum += ns;
  }
  return fastest;
}

}  // namespace

LinkTime measureLink(Peers& peers, int64_t with, bool starts) {
  LinkTime found;
  {
    Ends ends(peers, with);
    if (!starts) {
      ends.answer();
    } else {
      ends.roundTripNs(0);  // the first message lets the ends agree on their transport
      const int64_t short_ns = fastestNs(kShortMessages, kFewestShort, [&] { return ends.roundTripNs(0); });
      for (int64_t bytes = kLeastBytes, ns = 0; bytes <= kMostBytes && ns < kEnoughNs; bytes *= kGrowth) {
        ns = fastestNs(kLongMessages, 1, [&] { return ends.roundTripNs(bytes); });
        found = linkTimeOf(short_ns / 2, ns - short_ns / 2, bytes);
      }
      ends.end();
    }
  }
  peers.dropLink(kLink, with);
  return found;
}

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
