#include "processes/links.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/link_time.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "collective/announcement.h"
#include "collective/measured_link.h"
#include "collective/peers.h"
#include "compile/device_list.h"
#include "compile/measured_placement.h"
#include "device/copy_time.h"
#include "processes/processes.h"
#include "schedule/links.h"
#include "schedule/machine_text.h"

namespace abele::processes {
namespace {

enum Class : size_t { kWithinProcess, kWithinHost, kBetweenHosts, kClasses };
constexpr std::array<const char*, kClasses> kNames = {"within a process", "within a host", "between hosts"};
constexpr char kAsMeasured[] = "as measured";

/// How the devices of a replica share memory and processes. The same in all processes, except `memories`.
struct Layout {
  int64_t here = 0;                   // devices in each process; 0: all are in this one
  int64_t together = 1;               // number of neighbours that share a memory
  std::vector<c10::Device> memories;  // memories of this process, if it has accelerators
  bool hasLinks() const { return here > 0 || memories.size() > 1; }
};

/// The number of neighbours per memory, if all groups have the same length and no memory occurs twice; otherwise 1.
int64_t lengthOfGroups(const std::vector<int>& spaces) {
  const auto length = static_cast<int64_t>(
      std::find_if(spaces.begin(), spaces.end(), [&](int space) { return space != spaces.front(); }) - spaces.begin());
  std::vector<int> begun;
  for (size_t d = 0; d < spaces.size(); ++d) {
    const bool begins = static_cast<int64_t>(d) % length == 0;
    if (!begins && spaces[d] != spaces[d - 1]) return 1;
    if (!begins) continue;
    if (std::ranges::find(begun, spaces[d]) != begun.end()) return 1;
    begun.push_back(spaces[d]);
  }
  return static_cast<int64_t>(spaces.size()) % length == 0 ? length : 1;
}

Layout layoutOf(const compile::ProgramOptions& options) {
  Layout layout{.here = compile::devicesOfReplicaHere(options)};
  if (compile::captureDevice(options).is_cpu()) {
    layout.together = std::max<int64_t>(1, layout.here);
    return layout;
  }
  const std::vector<c10::Device> devices = compile::devicesHere(options);
  const size_t own = layout.here > 0 ? static_cast<size_t>(layout.here) : devices.size();
  for (size_t d = 0; d < own; ++d) {
    const c10::Device device = devices[d % devices.size()];
    if (std::ranges::find(layout.memories, device) == layout.memories.end()) layout.memories.push_back(device);
  }
  std::vector<int> spaces;
  for (size_t d = 0; d < own * static_cast<size_t>(options.processes.stages); ++d)
    spaces.push_back(options.stages.spaceOf(static_cast<int>(d)));
  layout.together = lengthOfGroups(spaces);
  if (layout.here % layout.together != 0) layout.together = 1;
  return layout;
}

/// The result that all processes share.
struct Measured {
  int64_t host_processes = 1;  // number of neighbouring processes on one host
  std::array<LinkTime, kClasses> links{};
  bool isKnown() const { return std::ranges::any_of(links, &LinkTime::isKnown); }
};

/// Rounds to three digits, which suffice and are easy to read.
int64_t rounded(int64_t value) {
  int64_t unit = 1;
  while (value / unit >= 1000) unit *= 10;
  return (value + unit / 2) / unit * unit;
}

constexpr int64_t kBandwidthUnit = 1000;  // bytes per second

/// Packs a link's times into the 64 bits that processes exchange. 0: not measured.
uint64_t packed(const LinkTime& link) {
  if (!link.isKnown()) return 0;
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const auto latency = static_cast<uint64_t>(std::clamp<int64_t>(rounded(link.latency_ns), 0, kMost));
  return latency << 32 |
         static_cast<uint64_t>(std::clamp<int64_t>(rounded(link.bytes_per_s) / kBandwidthUnit, 1, kMost));
}
LinkTime unpacked(uint64_t fact) {
  return {static_cast<int64_t>(fact >> 32),
          static_cast<int64_t>(fact & std::numeric_limits<uint32_t>::max()) * kBandwidthUnit};
}

schedule::Machine machineOf(const Layout& layout, const Measured& measured, int64_t processes) {
  schedule::Machine machine{.name = kAsMeasured, .space_devices = layout.together};
  const auto add = [&](Class which, int64_t devices) {
    const LinkTime& link = measured.links[which];
    if (link.isKnown())
      machine.links.push_back(
          {.name = kNames[which], .devices = devices, .latency_ns = link.latency_ns, .bytes_per_s = link.bytes_per_s});
  };
  add(kWithinProcess, layout.here);
  if (layout.here > 0) {
    add(kWithinHost, layout.here * measured.host_processes);
    if (measured.host_processes < processes) add(kBetweenHosts, 0);
  }
  if (!machine.links.empty()) machine.links.back().devices = 0;  // it connects all devices
  return machine;
}

/// The inverse of machineOf. Returns nothing for a machine that this layout cannot have.
std::optional<Measured> measuredOf(const schedule::Machine& machine, const Layout& layout, int64_t processes) {
  Measured measured;
  for (const schedule::Link& link : machine.links) {
    const auto which = static_cast<size_t>(std::find(kNames.begin(), kNames.end(), link.name) - kNames.begin());
    if (which == kClasses) return std::nullopt;
    measured.links[which] = {link.latency_ns, link.bytes_per_s};
    if (which == kWithinHost)
      measured.host_processes = link.devices == 0 ? processes : link.devices / std::max<int64_t>(1, layout.here);
  }
  if (machineOf(layout, measured, processes) != machine) return std::nullopt;
  return measured;
}

ProcessMutex kept_here_mutex;
std::map<std::string, schedule::Machine>& keptHere() {
  static std::map<std::string, schedule::Machine> kept;
  return kept;
}

/// The measured links of a layout, kept in this process, and in a file beside the executables.
class Kept {
 public:
  Kept(const compile::ProgramOptions& options, const Layout& layout) : folder_(options.cache_path) {
    const compile::ProcessOptions& processes = options.processes;
    const std::string text =
        cat(compile::machineText(options), ", ", processes.count, " processes, ", processes.stages,
            " share a replica, ", layout.here, " devices in each, ", layout.together, " in one memory, on ",
            options.device.empty() ? "cpu" : options.device, " ", environmentText("ABELE_HANDOVER"));
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    key_ = digits;
  }

  std::optional<schedule::Machine> find() const {
    {
      const std::lock_guard lock(kept_here_mutex);
      if (const auto found = keptHere().find(key_); found != keptHere().end()) return found->second;
    }
    std::error_code error_of_path;
    if (folder_.empty() || !std::filesystem::exists(path(), error_of_path)) return std::nullopt;
    try {
      return schedule::parseMachine(readWholeFile(path(), "{", kMostTextBytes));
    } catch (const Error& error) {
      log::warn("the links in ", path(), " cannot be used, and are measured again: ", error.message().what);
      return std::nullopt;
    }
  }

  /// is_new: an existing file holds something else and is replaced.
  void keep(const schedule::Machine& machine, bool is_new) const {
    {
      const std::lock_guard lock(kept_here_mutex);
      keptHere()[key_] = machine;
    }
    std::error_code error_of_path;
    if (folder_.empty() || (!is_new && std::filesystem::exists(path(), error_of_path))) return;
    try {
      std::filesystem::create_directories(folder_);
      writeWholeFile(path(), schedule::machineText(machine));
    } catch (const Error& error) {
      log::warn("the measured links cannot be stored in ", folder_, ": ", error.message().found);
    } catch (const std::filesystem::filesystem_error& error) {
      log::warn("the measured links cannot be stored in ", folder_, ": ", error.what());
    }
  }

 private:
  std::string path() const { return cat(folder_, "/", key_, ".machine"); }
  std::string folder_, key_;
};

/// Measures the links between neighbouring memories of this process.
LinkTime measureWithinProcess(const Layout& layout) {
  LinkTime slowest;
  for (size_t m = 1; m < layout.memories.size(); ++m)
    slowest = slowerOf(slowest, device::measureCopy(layout.memories[m - 1], layout.memories[m]));
  return slowest;
}

/// Measures the link to the next process. Values of accelerators pass through the host's memory.
LinkTime measureToNext(const Layout& layout, collective::Peers& peers) {
  LinkTime out, in;
  for (const c10::Device device : layout.memories) {
    out = slowerOf(out, device::measureCopy(device, c10::Device(c10::kCPU)));
    in = slowerOf(in, device::measureCopy(c10::Device(c10::kCPU), device));
  }
  const LinkTime link = collective::measureLinkToNext(peers);
  return link.isKnown() ? oneAfterTheOther(out, oneAfterTheOther(link, in)) : LinkTime{};
}

constexpr char kAct[] = "measures links";

collective::Announcement announcementOf(const Measured& measured) {
  collective::Announcement own{.act = kAct, .facts = {static_cast<uint64_t>(measured.host_processes)}};
  for (size_t which = 0; which < kClasses; ++which) own.facts[1 + which] = packed(measured.links[which]);
  return own;
}

Measured measuredIn(const collective::Announcement& announcement) {
  Measured measured{.host_processes = static_cast<int64_t>(announcement.facts[0])};
  for (size_t which = 0; which < kClasses; ++which) measured.links[which] = unpacked(announcement.facts[1 + which]);
  return measured;
}

/// Number of neighbouring processes on one host, if it is the same everywhere and hosts begin with a group; otherwise
/// 1.
int64_t hostProcesses(const std::vector<collective::Announcement>& all) {
  const auto count = static_cast<int64_t>(all.size());
  const auto first = static_cast<int64_t>(all[0].facts[0]);
  const bool same =
      std::ranges::all_of(all, [&](const collective::Announcement& each) { return each.facts[0] == all[0].facts[0]; });
  return same && first > 0 && count % first == 0 ? first : 1;
}

/// Takes what the first process knows. If it knows nothing, all processes measure.
Measured agreeOn(const std::optional<Measured>& known, const Layout& layout, const compile::ProgramOptions& options,
                 collective::Peers& peers, const std::function<bool()>& poll) {
  const std::vector<collective::Announcement> all =
      exchange(peers, announcementOf(known.value_or(Measured{.host_processes = options.processes.on_host})), poll);
  if (const Measured told = measuredIn(all[0]); told.isKnown()) return told;
  Measured agreed{.host_processes = hostProcesses(all)};
  Measured own = agreed;
  own.links[kWithinProcess] = measureWithinProcess(layout);
  if (layout.here > 0) {
    LinkTime to_next;
    waitForOthers(peers, poll, [&] { to_next = measureToNext(layout, peers); });
    const int64_t host = peers.process() / agreed.host_processes, next = (peers.process() + 1) / agreed.host_processes;
    own.links[host == next ? kWithinHost : kBetweenHosts] = to_next;
  }
  for (const collective::Announcement& each : exchange(peers, announcementOf(own), poll)) {
    const Measured theirs = measuredIn(each);
    for (size_t which = 0; which < kClasses; ++which)
      agreed.links[which] = slowerOf(agreed.links[which], theirs.links[which]);
  }
  return agreed;
}

}  // namespace

std::string costsWithLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers,
                           const std::function<bool()>& poll) {
  if (!options.costs.empty() || options.stochastic_rounding) return options.costs;
  const Layout layout = layoutOf(options);
  if (!layout.hasLinks()) return options.costs;
  const int64_t processes = options.processes.count;
  const Kept kept(options, layout);
  const std::optional<schedule::Machine> found = kept.find();
  const std::optional<Measured> known = found ? measuredOf(*found, layout, processes) : std::nullopt;
  ABELE_CHECK(peers || layout.here == 0, "stages in other processes without connections to them");
  Measured measured;
  if (peers) {
    measured = agreeOn(known, layout, options, *peers, poll);
  } else if (known) {
    measured = *known;
  } else {
    measured.links[kWithinProcess] = unpacked(packed(measureWithinProcess(layout)));
  }
  const schedule::Machine machine = machineOf(layout, measured, processes);
  if (!machine.hasLinks()) return options.costs;
  const std::string text = schedule::machineText(machine);
  const bool is_new = !found || *found != machine;
  kept.keep(machine, is_new);
  if (is_new) log::info("links as measured: ", text);
  return cat("{\"machine\": ", text, "}");
}

}  // namespace abele::processes
