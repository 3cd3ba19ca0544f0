#include "compile/measured_placement.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <ranges>
#include <set>
#include <sstream>

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "abele/placement.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/processor_name.h"
#include "base/whole_file.h"
#include "compile/placement.h"
#include "split/explain.h"

namespace abele::compile {
namespace {

constexpr size_t kSlowerInARow = 2;
constexpr double kClose = 1.2;  // times the best; beside other programs, smaller differences are often noise
constexpr const char* kHead = "abele placement 2";
constexpr std::string_view kInTurn = " in turn";

std::string hashText(const std::string& text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

std::string oneLine(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string counted(int count, const char* what) { return cat(count, " ", what, count == 1 ? "" : "s"); }

// Returns the rest of a line after this word, or nothing if the line does not start with it.
std::optional<std::string> fieldOf(const std::string& line, std::string_view word) {
  if (!line.starts_with(word) || line.size() <= word.size() || line[word.size()] != ' ') return std::nullopt;
  return line.substr(word.size() + 1);
}

bool readTrial(const std::string& line, PlacementTrial& trial) {
  long long step_ns = 0;
  int begin = 0, end = 0;
  int& devices = trial.candidate.devices;
  if (std::sscanf(line.c_str(), "devices %d%n", &devices, &begin) != 1) return false;
  trial.candidate.in_turn = std::string_view(line).substr(static_cast<size_t>(begin)).starts_with(kInTurn);
  if (trial.candidate.in_turn) begin += static_cast<int>(kInTurn.size());
  if (std::sscanf(line.c_str() + begin, " threads %d step_ns %lld%n", &trial.threads, &step_ns, &end) != 2 ||
      devices < 1 || trial.threads < 1 || step_ns < 0)
    return false;
  trial.step_ns = step_ns;
  const std::string rest = line.substr(static_cast<size_t>(begin + end));
  if (rest.empty()) return step_ns > 0;
  const auto refused = fieldOf(rest, " refused");
  if (refused) trial.refused = *refused;
  return refused && step_ns == 0;
}

// Placements of programs without a folder of compiled programs.
ProcessMutex kept_here_mutex;
std::map<std::string, MeasuredPlacement>& keptHere() {
  static std::map<std::string, MeasuredPlacement> kept;
  return kept;
}

}  // namespace

const PlacementTrial& MeasuredPlacement::best() const {
  const PlacementTrial* best = nullptr;
  for (const PlacementTrial& trial : trials)
    if (trial.step_ns > 0 && (!best || trial.step_ns < best->step_ns)) best = &trial;
  ABELE_CHECK(best != nullptr, "no trial of ", trials.size(), " ran");
  return *best;
}

std::string MeasuredPlacement::text() const {
  if (trials.empty()) return "";
  const PlacementTrial& taken = best();
  std::string out = cat("devices measured on ", machine, ":\n");
  for (const PlacementTrial& trial : trials) {
    const char* way = trial.candidate.in_turn ? " that take micro-batches in turn" : "";
    out += cat("  ", counted(trial.candidate.devices, "device"));
    if (trial.step_ns == 0)
      out += cat(way, ": refused, ", trial.refused, "\n");
    else
      out +=
          cat(" of ", counted(trial.threads, "thread"), way, ": ", split::millisecondsText(trial.step_ns),
              " ms a call, ", &trial == &taken ? "taken" : split::differenceText(trial.step_ns, taken.step_ns), "\n");
  }
  return out;
}

bool measuresDevices(const ProgramOptions& options) {
  return splitsByItself(options) && options.stages.devices == kMeasuredDevices;
}

std::string whyNotMeasured(const ir::Graph& graph, const ProgramOptions& options) {
  if (options.processes.count > 1) return cat(options.processes.count, " processes train together");
  if (!captureDevice(options).is_cpu()) return cat("the devices are ", options.device);
  for (const ir::Node& node : graph.nodes)
    if (node.op == "abele_op::host_call" || node.op == "abele_op::print_tensor")
      return "the program calls functions of the host or prints, which trials would do too";
  return "";
}

std::vector<PlacementCandidate> placementCandidates(int cores, int64_t micro_batches, bool may_take_turns) {
  std::vector<PlacementCandidate> candidates = {{.devices = 1}};
  for (int devices = 2; devices <= cores && devices <= micro_batches; ++devices) {
    if (cores % devices != 0) continue;
    if (may_take_turns) candidates.push_back({.devices = devices, .in_turn = true});
    candidates.push_back({.devices = devices});
  }
  return candidates;
}

std::vector<PlacementCandidate> placementCandidates(const ProgramOptions& options) {
  const int cores = std::max(1, coresOfReplica(options) / options.stages.group);
  return placementCandidates(cores, microBatchesInWork(options), whyNotInTurn(options).empty());
}

ProgramOptions shortCall(ProgramOptions options, int devices) {
  const int64_t micro_batches = std::min<int64_t>(microBatchesInWork(options), devices);
  options.device_iterations = options.training ? 1 : micro_batches;
  if (options.training) options.gradient_accumulation = micro_batches;
  return options;
}

int64_t wholeCallNs(const ProgramOptions& options, const ProgramOptions& timed, const TimedCall& call) {
  const int64_t more = microBatchesInWork(options) - microBatchesInWork(timed);
  const int64_t updates = options.training ? options.device_iterations / timed.device_iterations : 1;
  return updates * (call.call_ns + more * call.micro_batch_ns);
}

std::vector<PlacementTrial> tryCandidates(const std::vector<PlacementCandidate>& candidates, const Try& run) {
  std::vector<PlacementTrial> trials;
  std::exception_ptr first_error;
  PlacementTrial best;
  std::set<int> slower;  // numbers of devices that ran after the best one
  for (const PlacementCandidate& candidate : candidates) {
    if (slower.size() == kSlowerInARow && !slower.contains(candidate.devices)) break;
    try {
      trials.push_back(run(candidate, /*again=*/false));
    } catch (const UserError& error) {
      if (!first_error) first_error = std::current_exception();
      trials.push_back({.candidate = candidate, .refused = oneLine(error.message().what)});
      continue;
    }
    const PlacementTrial& trial = trials.back();
    if (best.step_ns == 0 || trial.step_ns <= best.step_ns) {
      best = trial;
      slower.clear();
    } else if (trial.candidate.devices != best.candidate.devices) {
      slower.insert(trial.candidate.devices);
    }
  }
  if (best.step_ns == 0 && first_error) std::rethrow_exception(first_error);
  const auto isClose = [&](const PlacementTrial& trial) {
    return trial.step_ns > 0 && static_cast<double>(trial.step_ns) <= kClose * static_cast<double>(best.step_ns);
  };
  // Noise should not decide between close ones, so they run again, in the opposite order. It only makes a time longer.
  if (std::ranges::count_if(trials, isClose) > 1)
    for (PlacementTrial& trial : std::views::reverse(trials))
      if (isClose(trial)) trial.step_ns = std::min(trial.step_ns, run(trial.candidate, /*again=*/true).step_ns);
  return trials;
}

std::string machineText(const ProgramOptions& options) {
  const int threads = options.threads_per_device > 0 ? options.threads_per_device : threadsPerDevice(options, 1);
  return cat(processorName(), ", ", counted(coresOfReplica(options), "core"), ", ", counted(threads, "thread"),
             options.threads_per_device > 0 ? " a device" : "", ", torch ", TORCH_VERSION);
}

std::string writePlacement(const MeasuredPlacement& placement) {
  std::string text = cat(kHead, "\nmachine ", placement.machine, "\n");
  for (const PlacementTrial& trial : placement.trials)
    text += cat("devices ", trial.candidate.devices, trial.candidate.in_turn ? kInTurn : "", " threads ", trial.threads,
                " step_ns ", trial.step_ns, trial.refused.empty() ? "" : cat(" refused ", trial.refused), "\n");
  return cat(text, "checksum ", hashText(text), "\n");
}

std::optional<MeasuredPlacement> readPlacement(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != kHead) return std::nullopt;
  MeasuredPlacement placement;
  bool ran = false;
  while (std::getline(in, line)) {
    if (const auto machine = fieldOf(line, "machine")) {
      placement.machine = *machine;
    } else if (line.starts_with("devices ")) {
      PlacementTrial& trial = placement.trials.emplace_back();
      if (!readTrial(line, trial)) return std::nullopt;
      ran |= trial.step_ns > 0;
    }
  }
  // The placement must give the same text when written again. This also checks the checksum.
  if (!ran || writePlacement(placement) != text) return std::nullopt;
  return placement;
}

PlacementStore::PlacementStore(std::string folder, const std::string& program, std::string machine)
    : folder_(std::move(folder)), key_(cat(program, "-", hashText(machine))), machine_(std::move(machine)) {}

std::optional<MeasuredPlacement> PlacementStore::find() const {
  if (folder_.empty()) {
    const std::lock_guard lock(kept_here_mutex);
    const auto found = keptHere().find(key_);
    return found == keptHere().end() ? std::nullopt : std::optional(found->second);
  }
  const std::string path = cat(folder_, "/", key_, ".placement");
  std::error_code error_of_path;
  if (!std::filesystem::exists(path, error_of_path) && !error_of_path) return std::nullopt;
  const auto warn = [&](const std::string& found) {
    log::warn("the placement ", path, " cannot be used, and devices are measured again: ", found);
    return std::nullopt;
  };
  try {
    std::optional<MeasuredPlacement> placement = readPlacement(readWholeFile(path, kHead, kMostTextBytes));
    if (!placement) return warn("the file is damaged");
    if (placement->machine != machine_) return warn(cat("it is of ", placement->machine));
    return placement;
  } catch (const Error& error) {
    return warn(error.message().what);
  }
}

void PlacementStore::keep(const MeasuredPlacement& placement) const {
  if (folder_.empty()) {
    const std::lock_guard lock(kept_here_mutex);
    keptHere()[key_] = placement;
    return;
  }
  try {
    std::filesystem::create_directories(folder_);
    writeWholeFile(cat(folder_, "/", key_, ".placement"), writePlacement(placement));
  } catch (const Error& error) {
    log::warn("the placement ", key_, " cannot be stored in ", folder_, ": ", error.message().found);
  } catch (const std::filesystem::filesystem_error& error) {
    log::warn("the placement ", key_, " cannot be stored in ", folder_, ": ", error.what());
  }
}

}  // namespace abele::compile
