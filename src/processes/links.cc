#include "processes/links.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/link_time.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "collective/measured_link.h"
#include "collective/peers.h"
#include "compile/device_list.h"
#include "device/copy_time.h"
#include "processes/processes.h"
#include "schedule/links.h"
#include "schedule/machine_text.h"

namespace abele::processes {
namespace {

constexpr char kVariable[] = "ABELE_MACHINE";

enum Class : size_t { kWithinProcess, kWithinHost, kBetweenHosts, kClasses };
constexpr std::array<const char*, kClasses> kNames = {"within a process", "within a host", "between hosts"};
using Times = std::array<LinkTime, kClasses>;
/// A PCIe bus; memory that processes share; a network of 10 Gb/s.
constexpr Times kDefaults = {LinkTime{10'000, 10'000'000'000}, {5'000, 5'000'000'000}, {30'000, 1'000'000'000}};

/// How the devices of a replica share memory and processes. The same in all processes.
struct Layout {
  int64_t here = 1;           // devices in each process
  int64_t together = 1;       // number of neighbours that share a memory
  bool in_processes = false;  // a replica extends over several processes
  bool hasLinks() const { return in_processes || together < here; }
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
  const int64_t here = compile::devicesOfReplicaHere(options);
  Layout layout{.here = std::max<int64_t>(1, here), .in_processes = here > 0};
  if (compile::captureDevice(options).is_cpu()) {
    layout.together = layout.here;
    return layout;
  }
  if (here == 0) layout.here = static_cast<int64_t>(compile::devicesHere(options).size());
  std::vector<int> spaces;
  for (int64_t d = 0; d < layout.here * options.processes.stages; ++d)
    spaces.push_back(options.stages.spaceOf(static_cast<int>(d)));
  layout.together = lengthOfGroups(spaces);
  if (layout.here % layout.together != 0) layout.together = 1;
  return layout;
}

/// What each process tells the others, as bytes.
struct Known {
  int64_t host_processes = 1;  // number of neighbouring processes on one host
  Times links{};
};

std::vector<Known> exchanged(collective::Peers& peers, const Known& own) {
  std::vector<Known> all;
  for (const std::string& bytes : peers.exchange({reinterpret_cast<const char*>(&own), sizeof own}))
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof own);
  return all;
}

/// Number of neighbouring processes on one host, if it is the same everywhere and hosts begin with a group; otherwise
/// 1.
int64_t hostProcesses(const std::vector<Known>& all) {
  const auto count = static_cast<int64_t>(all.size());
  const int64_t first = all[0].host_processes;
  const bool same = std::ranges::all_of(all, [&](const Known& each) { return each.host_processes == first; });
  return same && first > 0 && count % first == 0 ? first : 1;
}

/// A link that is not known has its default times, and its name says so.
schedule::Machine machineOf(const Layout& layout, const Known& known, int64_t processes) {
  schedule::Machine machine{.name = "defaults; abele env --measure measures links", .space_devices = layout.together};
  const auto add = [&](Class which, int64_t devices) {
    const bool is_known = known.links[which].isKnown();
    const LinkTime& link = is_known ? known.links[which] : kDefaults[which];
    if (is_known) machine.name = "as measured";
    machine.links.push_back({.name = cat(kNames[which], is_known ? "" : " (default)"),
                             .devices = devices,
                             .latency_ns = link.latency_ns,
                             .bytes_per_s = link.bytes_per_s});
  };
  if (layout.together < layout.here) add(kWithinProcess, layout.here);
  if (layout.in_processes && known.host_processes > 1) add(kWithinHost, layout.here * known.host_processes);
  if (layout.in_processes && known.host_processes < processes) add(kBetweenHosts, 0);
  if (machine.hasLinks()) machine.links.back().devices = 0;  // it connects all devices
  return machine;
}

/// The path of the machine file. Empty: the user has no folder for it.
std::string machineFile() {
  if (std::string path = environmentText(kVariable); !path.empty()) return path;
  if (const std::string folder = environmentText("XDG_CONFIG_HOME"); !folder.empty())
    return cat(folder, "/abele/machine.json");
  const std::string home = environmentText("HOME");
  return home.empty() ? "" : cat(home, "/.config/abele/machine.json");
}

/// Returns nothing without a file. A file that the user named must exist.
std::optional<schedule::Machine> readMachineFile() {
  const std::string path = machineFile();
  std::error_code not_seen;
  const bool is_named = !environmentText(kVariable).empty();
  if (path.empty() || (!is_named && !std::filesystem::exists(path, not_seen))) return std::nullopt;
  return schedule::parseMachine(readWholeFile(path, {}, kMostTextBytes), cat("machine file ", path));
}

Times timesInFile() {
  Times times{};
  const std::optional<schedule::Machine> machine = readMachineFile();
  if (!machine) return times;
  for (const schedule::Link& link : machine->links) {
    const auto which = static_cast<size_t>(std::find(kNames.begin(), kNames.end(), link.name) - kNames.begin());
    ABELE_REQUIRE(which < kClasses, E0404,
                  {.what = cat("machine file ", machineFile(), " has a link \"", link.name, "\""),
                   .expected = "links \"within a process\", \"within a host\" and \"between hosts\"",
                   .remedy = cat("let abele env --measure write it, or name another file in ", kVariable)});
    times[which] = {link.latency_ns, link.bytes_per_s};
  }
  return times;
}

/// Rounds to three digits, which suffice and are easy to read.
int64_t rounded(int64_t value) {
  int64_t unit = 1;
  while (value / unit >= 1000) unit *= 10;
  return (value + unit / 2) / unit * unit;
}

/// The accelerators of this process. Without devicesPerProcess the processes of a host divide the list.
std::vector<c10::Device> acceleratorsHere(const compile::ProgramOptions& options) {
  std::vector<c10::Device> devices = compile::devicesHere(options);
  devices.resize(std::max<size_t>(1, devices.size() / static_cast<size_t>(options.processes.on_host)), devices[0]);
  std::erase_if(devices, [](c10::Device device) { return device.is_cpu(); });
  return devices;
}

LinkTime measureWithinProcess(const std::vector<c10::Device>& devices) {
  LinkTime slowest;
  for (size_t d = 1; d < devices.size(); ++d)
    slowest = slowerOf(slowest, device::measureCopy(devices[d - 1], devices[d]));
  return slowest;
}

/// Measures the link to the next process. Values of accelerators pass through the host's memory.
LinkTime measureToNext(const std::vector<c10::Device>& devices, collective::Peers& peers) {
  LinkTime out, in;
  for (const c10::Device device : devices) {
    out = slowerOf(out, device::measureCopy(device, c10::Device(c10::kCPU)));
    in = slowerOf(in, device::measureCopy(c10::Device(c10::kCPU), device));
  }
  const LinkTime link = collective::measureLinkToNext(peers);
  return link.isKnown() ? oneAfterTheOther(out, oneAfterTheOther(link, in)) : LinkTime{};
}

/// The worst times that any process finds.
Known measured(const std::vector<c10::Device>& devices, Known own, collective::Peers* peers) {
  own.links[kWithinProcess] = measureWithinProcess(devices);
  if (peers == nullptr) return own;
  Known worst{.host_processes = hostProcesses(exchanged(*peers, own))};
  const int64_t host = peers->process() / worst.host_processes, next = (peers->process() + 1) / worst.host_processes;
  own.links[host == next ? kWithinHost : kBetweenHosts] = measureToNext(devices, *peers);
  for (const Known& each : exchanged(*peers, own))
    for (size_t which = 0; which < kClasses; ++which)
      worst.links[which] = slowerOf(worst.links[which], each.links[which]);
  return worst;
}

}  // namespace

std::string costsWithLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers,
                           const std::function<bool()>& poll) {
  const Layout layout = layoutOf(options);
  const bool counts_links = options.costs.empty() && !options.stochastic_rounding && layout.hasLinks();
  ABELE_CHECK(peers || !layout.in_processes, "stages in other processes without connections to them");
  Known known{.host_processes = options.processes.on_host};
  if (counts_links && (!peers || peers->process() == 0)) known.links = timesInFile();
  if (peers)
    waitForOthers(*peers, poll, [&] {
      const std::vector<Known> all = exchanged(*peers, known);
      known = {.host_processes = hostProcesses(all), .links = all[0].links};
    });
  if (!counts_links) return options.costs;
  const schedule::Machine machine = machineOf(layout, known, options.processes.count);
  log::info("links (", machine.name, "): ", schedule::linksText(machine));
  return cat("{\"machine\": ", schedule::machineText(machine), "}");
}

void measureLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers) {
  const std::vector<c10::Device> devices = acceleratorsHere(options);
  Known known = measured(devices, {.host_processes = options.processes.on_host}, peers.get());
  for (LinkTime& link : known.links) link = {rounded(link.latency_ns), rounded(link.bytes_per_s)};
  const Layout layout{.here = std::max<int64_t>(1, static_cast<int64_t>(devices.size())),
                      .in_processes = peers != nullptr};
  const schedule::Machine machine = machineOf(layout, known, options.processes.count);
  ABELE_REQUIRE(machine.hasLinks(), E0702,
                {.what = "there are no links to measure: one process, without several accelerators",
                 .remedy = "start several processes, with torchrun or poprun"});
  const std::string path = machineFile();
  ABELE_REQUIRE(!path.empty(), E0712,
                {.what = "there is no place for the machine file", .remedy = cat("set ", kVariable, " to its path")});
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::error_code not_made;  // then writing fails, and says so
    std::filesystem::create_directories(folder, not_made);
  }
  writeWholeFile(path, schedule::machineText(machine));
}

std::string machineFileText() {
  const std::string path = machineFile();
  const std::optional<schedule::Machine> machine = readMachineFile();
  return machine ? cat(schedule::linksText(*machine), ", in ", path)
                 : cat("default times, since there is no ", path.empty() ? "machine file" : path,
                       " (abele env --measure writes it)");
}

}  // namespace abele::processes
