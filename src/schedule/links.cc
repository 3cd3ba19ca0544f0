#include "schedule/links.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"

namespace abele::schedule {
namespace {

// The two ends of a link and its number. The ends are devices, or groups of devices that share the link.
using Wire = std::array<int64_t, 3>;

int64_t sizeInside(const Machine& machine, int link) {
  return link == 0 ? machine.space_devices : machine.links[static_cast<size_t>(link) - 1].devices;
}

Wire wireBetween(const Machine& machine, int link, int64_t a, int64_t b) {
  const bool is_shared = machine.links[static_cast<size_t>(link)].is_shared;
  const int64_t size = is_shared ? sizeInside(machine, link) : 1;
  return {link, a / size, b / size};
}

// Maps a device of a replica to a device of the whole machine.
class Places {
 public:
  Places(const std::vector<int>& device_of, const Replication& replication)
      : replication_(replication), devices_(1 + *std::max_element(device_of.begin(), device_of.end())) {}
  int64_t devices() const { return devices_; }
  int64_t place(int64_t device, int64_t replica) const {
    return replication_.is_together ? device * replication_.replicas + replica : replica * devices_ + device;
  }

 private:
  const Replication& replication_;
  int64_t devices_;
};

// The ring of each device: the slowest link that it crosses gives the time of its messages.
class Rings {
 public:
  Rings(const std::vector<int>& device_of, const Machine& machine, const Replication& replication)
      : machine_(machine), replicas_(replication.replicas), places_(device_of, replication) {
    std::vector<bool> used(static_cast<size_t>(places_.devices()), false);
    for (int device : device_of) used[static_cast<size_t>(device)] = true;
    for (int64_t device = 0; device < places_.devices(); ++device)
      if (used[static_cast<size_t>(device)]) forEachStep(device, [&](const Wire& wire) { ++uses_[wire]; });
  }

  int64_t messageNs(int64_t device, int64_t bytes) const {
    int64_t slowest = 0;
    forEachStep(device, [&](const Wire& wire) {
      const Link& link = machine_.links[static_cast<size_t>(wire[0])];
      slowest = std::max(slowest, schedule::messageNs(link, bytes, uses_.at(wire)));
    });
    return slowest;
  }

 private:
  template <class Fn>
  void forEachStep(int64_t device, Fn&& visit) const {
    for (int64_t r = 0; r < replicas_; ++r) {
      const int64_t a = places_.place(device, r), b = places_.place(device, (r + 1) % replicas_);
      const int link = machine_.linkBetween(a, b);
      if (link >= 0) visit(wireBetween(machine_, link, a, b));
    }
  }

  const Machine& machine_;
  int64_t replicas_;
  Places places_;
  std::map<Wire, int64_t> uses_;
};

}  // namespace

int Machine::linkBetween(int64_t a, int64_t b) const {
  if (links.empty() || a / space_devices == b / space_devices) return -1;
  for (size_t i = 0; i < links.size(); ++i)
    if (links[i].devices == 0 || a / links[i].devices == b / links[i].devices) return static_cast<int>(i);
  throwUser(ErrorCode::E0404, {.what = cat("no link between the devices ", a, " and ", b),
                               .found = cat(links.back().devices, " devices that are linked"),
                               .expected = "a last link without \"devices\", which joins all of them"});
}

int64_t messageNs(const Link& link, int64_t bytes, int64_t sharers) {
  const double seconds =
      static_cast<double>(bytes) * static_cast<double>(sharers) / static_cast<double>(link.bytes_per_s);
  return link.latency_ns + std::llround(seconds * 1e9);
}

std::vector<Transfer> transfersOf(const std::vector<Handover>& handovers, const std::vector<int>& device_of,
                                  const Machine& machine, const Replication& replication) {
  std::vector<Transfer> transfers;
  if (!machine.hasLinks() || handovers.empty()) return transfers;
  const Places places(device_of, replication);
  std::map<Wire, int32_t> numbers;
  for (const Handover& h : handovers) {
    const int64_t from = device_of[static_cast<size_t>(h.from.stage)], to = device_of[static_cast<size_t>(h.to.stage)];
    std::map<Wire, int64_t> uses;
    for (int64_t r = 0; r < replication.replicas; ++r) {
      const int64_t a = places.place(from, r), b = places.place(to, r);
      if (const int link = machine.linkBetween(a, b); link >= 0) ++uses[wireBetween(machine, link, a, b)];
    }
    Transfer slowest{.from = h.from, .to = h.to, .bytes = h.bytes, .is_placed = h.is_placed, .time_ns = -1};
    for (const auto& [wire, count] : uses) {
      const Link& link = machine.links[static_cast<size_t>(wire[0])];
      const int64_t time = messageNs(link, h.bytes, count);
      if (time <= slowest.time_ns) continue;
      slowest.time_ns = time;
      slowest.link = numbers.try_emplace(wire, static_cast<int32_t>(numbers.size())).first->second;
      slowest.name = link.name;
    }
    slowest.from_device = from;
    slowest.to_device = to;
    if (slowest.time_ns >= 0) transfers.push_back(std::move(slowest));
  }
  return transfers;
}

std::vector<int64_t> ringTimes(const std::vector<int64_t>& gradient_bytes, const std::vector<int>& device_of,
                               const Machine& machine, const Replication& replication) {
  const int64_t r = replication.replicas;
  if (!machine.hasLinks() || r == 1 || gradient_bytes.empty()) return {};
  const Rings rings(device_of, machine, replication);
  std::vector<int64_t> times;
  for (size_t s = 0; s < gradient_bytes.size(); ++s) {
    const int64_t bytes = gradient_bytes[s];
    times.push_back(bytes == 0 ? 0 : 2 * (r - 1) * rings.messageNs(device_of[s], (bytes + r - 1) / r));
  }
  return times;
}

}  // namespace abele::schedule
