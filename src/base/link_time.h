// The measured time of a message between two memories.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace abele {

/// A message takes latency_ns + bytes / bytes_per_s.
struct LinkTime {
  int64_t latency_ns = 0;
  int64_t bytes_per_s = 0;  // 0: not measured

  bool isKnown() const { return bytes_per_s > 0; }
  bool operator==(const LinkTime&) const = default;
};

/// The larger latency and the lower bandwidth of two links. A link without a measurement is ignored.
inline LinkTime slowerOf(const LinkTime& a, const LinkTime& b) {
  if (!a.isKnown() || !b.isKnown()) return a.isKnown() ? a : b;
  return {std::max(a.latency_ns, b.latency_ns), std::min(a.bytes_per_s, b.bytes_per_s)};
}

/// The time of a message that crosses both links, one after the other.
inline LinkTime oneAfterTheOther(const LinkTime& a, const LinkTime& b) {
  if (!a.isKnown() || !b.isKnown()) return a.isKnown() ? a : b;
  const double together = 1 / (1 / static_cast<double>(a.bytes_per_s) + 1 / static_cast<double>(b.bytes_per_s));
  return {a.latency_ns + b.latency_ns, std::max<int64_t>(1, std::llround(together))};
}

/// Computes the figures from two measured times. A short message gives the latency; the rest of a long one gives the
/// bandwidth.
inline LinkTime linkTimeOf(int64_t short_ns, int64_t long_ns, int64_t long_bytes) {
  const int64_t moving_ns = std::max<int64_t>(1, long_ns - short_ns);
  return {std::max<int64_t>(0, short_ns),
          std::max<int64_t>(1, std::llround(static_cast<double>(long_bytes) * 1e9 / static_cast<double>(moving_ns)))};
}

}  // namespace abele
