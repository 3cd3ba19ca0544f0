#include "report/report_words.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/predict.h"
#include "schedule/schedules.h"

namespace abele::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastGain = 0.01;  // share of a micro-batch's time; predictions are not more precise
constexpr double kMiB = 1 << 20;

struct Busy {
  std::string device;
  double us = 0;
};

/// Who sets the pace. busy: of a call, by device; whole: us of a call.
std::vector<std::string> paceOf(const std::vector<Busy>& busy, double whole) {
  const auto most = std::ranges::max_element(busy, {}, &Busy::us);
  double sum = 0, next = -1;
  for (auto device = busy.begin(); device != busy.end(); ++device) {
    sum += device->us;
    if (device != most) next = std::max(next, device->us);
  }
  const auto count = static_cast<double>(busy.size());
  std::vector<std::string> facts = {
      printed("The devices work %.0f %% of the time; the rest they wait for each other or for the host.",
              100 * sum / (whole * count))};
  if (next < 0) return facts;
  if (most->us > 1.15 * next)
    facts.push_back(
        printed("%s works %.4g ms a call, the next one %.4g ms: it sets the pace. With the same work in "
                "equal parts each would have %.4g ms. Move layers away from it, or let AutoStage.AutoSplit "
                "cut the model.",
                most->device.c_str(), most->us / 1e3, next / 1e3, sum / count / 1e3));
  else
    facts.emplace_back("The work is in nearly equal parts: no device sets the pace alone.");
  return facts;
}

std::vector<std::string> paceOf(const session::SessionReport& report) {
  std::vector<Busy> busy;
  for (const session::SessionReport::Stage& stage : report.stages) {
    const std::string device = cat("device ", stage.device);
    auto own = std::ranges::find(busy, device, &Busy::device);
    if (own == busy.end()) own = busy.insert(busy.end(), {device, 0});
    own->us += static_cast<double>(stage.busy_ns) / 1e3;
  }
  return paceOf(busy, static_cast<double>(report.step_ns) / 1e3);
}

void addWaits(const std::vector<const TraceTrack*>& devices, double whole, std::vector<std::string>& facts) {
  constexpr std::string_view kWait = "wait for ";
  for (const TraceTrack* track : devices) {
    std::map<std::string, double> reasons;
    for (const RecordedSpan& span : track->spans) {
      if (span.kind != "wait") continue;
      const std::string reason = span.action();
      reasons[reason.starts_with(kWait) ? reason.substr(kWait.size()) : reason] += span.length;
    }
    const auto most = std::ranges::max_element(reasons, {}, [](const auto& each) { return each.second; });
    if (most != reasons.end() && most->second > 0.1 * whole)
      facts.push_back(printed("%s waits %.0f %% of the time for %s.", track->label.c_str(), 100 * most->second / whole,
                              most->first.c_str()));
  }
}

void addHost(const TraceTracks& trace, double whole, double calls, std::vector<std::string>& facts) {
  double outside = 0;
  for (const TraceTrack& track : trace.tracks)
    for (const RecordedSpan& span : track.spans)
      if (track.isHost() && (span.name == "inputs" || span.name == "results")) outside += span.length;
  if (outside > 0.05 * whole)
    facts.push_back(
        printed("The host takes %.4g ms a call for inputs and results, %.0f %% of it: more micro-batches in "
                "a call (deviceIterations) share that.",
                outside / calls / 1e3, 100 * outside / whole));
}

std::vector<std::string> ofTrace(const TraceTracks& trace) {
  static const std::set<std::string> kBusy = {"forward", "backward", "weight-gradient", "update"};
  const std::vector<const TraceTrack*> devices = trace.devices("measured");
  const std::vector<double> lengths = trace.calls();
  if (devices.empty() || lengths.empty()) return {};
  const double whole = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  const auto calls = static_cast<double>(lengths.size());
  std::vector<Busy> busy;
  for (const TraceTrack* track : devices) {
    Busy& own = busy.emplace_back(Busy{track->label, 0});
    for (const RecordedSpan& span : track->spans)
      if (kBusy.contains(span.kind)) own.us += span.length / calls;
  }
  std::vector<std::string> facts = paceOf(busy, whole / calls);
  addWaits(devices, whole, facts);
  addHost(trace, whole, calls, facts);
  double begin = 0, end = -1;
  for (const TraceTrack* track : trace.devices("predicted"))
    for (const RecordedSpan& span : track->spans) {
      begin = end < 0 ? span.begin : std::min(begin, span.begin);
      end = std::max(end, span.end());
    }
  if (end >= 0)
    facts.push_back(
        printed("A call takes %.4g ms. The simulator predicts %.4g ms for its step, with the costs that were "
                "measured; the difference is the host's part and what the runtime takes between actions.",
                whole / calls / 1e3, (end - begin) / 1e3));
  return facts;
}

void addMemory(const Json& memory, std::vector<std::string>& facts) {
  const auto peak = [](const Json& device) { return device["peak_bytes"].get<double>(); };
  const Json& fullest = *std::ranges::max_element(memory["devices"], {}, peak);
  const double whole = peak(fullest);
  if (whole == 0) return;
  std::string kind;
  double most = -1;
  for (const auto& [name, bytes] : fullest["by_class"].items())
    if (bytes.get<double>() > most) {
      kind = name;
      most = bytes.get<double>();
    }
  std::string words = kind;
  std::ranges::replace(words, '_', ' ');
  facts.push_back(printed("Device %d is the fullest, with %.4g MiB; %.0f %% of it is %s.", fullest["device"].get<int>(),
                          whole / kMiB, 100 * most / whole, words.c_str()));
  if (kind == "stash" && most > 0.3 * whole)
    facts.emplace_back("The stash holds activations of micro-batches in work: recompute() or fewer of them need less.");
}

}  // namespace

std::string bytesText(double bytes, int digits) {
  for (const char* unit : {"B", "KiB", "MiB"}) {
    if (bytes < 1024) return printed("%.*g %s", digits, bytes, unit);
    bytes /= 1024;
  }
  return printed("%.*g GiB", digits, bytes);
}

std::vector<std::string> factsOf(const TraceTracks* trace, const session::SessionReport* report, const Json& memory) {
  std::vector<std::string> facts;
  if (trace != nullptr)
    facts = ofTrace(*trace);
  else if (report != nullptr && report->step_ns != 0)
    facts = paceOf(*report);
  if (report != nullptr && report->workspace_bytes != 0)
    facts.push_back(printed("Kernels took %.3g MiB of workspace from the heap so far.",
                            static_cast<double>(report->workspace_bytes) / kMiB));
  if (!memory.is_null()) addMemory(memory, facts);
  return facts;
}

std::vector<Advice> adviceOf(const session::Session& session, int64_t front_ns) {
  const plan::PlanOptions now = session.plan().options;
  const bool training = session.executable().training;
  if (now.schedule == schedule::ScheduleKind::kSharded) return {};
  plan::Chain chain = plan::parseChain(session.costs());
  chain.costs.host_ns += std::max<int64_t>(front_ns, 0);
  const auto stepOf = [&](schedule::ScheduleKind schedule, int64_t micro_batches) {
    return static_cast<double>(
        plan::predict(chain, {.schedule = schedule,
                              .training = training,
                              .device_iterations = training ? now.device_iterations : micro_batches,
                              .accumulation = training ? micro_batches : 1})
            .run.step_ns);
  };
  const int64_t count = training ? now.accumulation : now.device_iterations;
  std::vector<Advice> found;
  try {
    const double base = stepOf(now.schedule, count) / static_cast<double>(count);
    const auto tried = [&](const std::string& what, const std::string& how, schedule::ScheduleKind schedule,
                           int64_t n) {
      try {
        const double step_ns = stepOf(schedule, n), gain = 1 - step_ns / static_cast<double>(n) / base;
        if (gain >= kLeastGain) found.push_back({what, how, step_ns / 1e3, gain});
      } catch (const UserError&) {  // not with this number of micro-batches or stages
      }
    };
    if (training)
      for (const std::string& name : schedule::scheduleNames(schedule::kTrains)) {
        schedule::ScheduleKind schedule;
        if (schedule::parseSchedule(name, schedule) && schedule != now.schedule &&
            schedule != schedule::ScheduleKind::kSharded)
          tried(cat("schedule ", name), cat("PipelinedExecution(...).schedule(\"", name, "\")"), schedule, count);
      }
    const std::string setter =
        training ? inLanguage("options.Training().gradientAccumulation") : inLanguage("options.deviceIterations");
    for (const int64_t n : {2 * count, 4 * count})
      tried(cat(n, " micro-batches of the same rows"), cat(setter, "(", n, ")"), now.schedule, n);
  } catch (const UserError&) {  // a schedule that cannot be simulated
  }
  std::ranges::stable_sort(found, std::greater(), &Advice::gain);
  return found;
}

}  // namespace abele::report
