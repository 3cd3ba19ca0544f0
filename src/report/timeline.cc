#include "report/timeline.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/predict.h"
#include "session/impl.h"

namespace abele::report {
namespace {

constexpr int64_t kHostTrack = 0;          // workers follow
constexpr int64_t kPagingTracks = 10'000;  // and by worker, where memory comes and goes
// Process ids are below 2^22, and viewers take numbers of groups below 2^31.
constexpr int64_t kGroupsOfProcess = 256;

int64_t newGroup() {
  static std::atomic<int64_t> count = 0;
  return getpid() * kGroupsOfProcess + (count++ * 2) % kGroupsOfProcess;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// As JSON has it.
std::string textOf(const std::string& text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  return is_plain ? cat('"', text, '"') : quoted(text);
}

/// As the format has times.
std::string microseconds(int64_t ns) {
  const std::string rest = cat(1000 + std::abs(ns) % 1000);
  return cat(ns < 0 ? "-" : "", std::abs(ns) / 1000, ".", std::string_view(rest).substr(1));
}

/// The name of a group, or of a track of it, and its place in the order.
std::string named(const char* what, int64_t group, int64_t track, const std::string& name) {
  const std::string where = cat("\"ph\": \"M\", \"pid\": ", group, ", \"tid\": ", track);
  return cat(",\n{\"name\": \"", what, "_name\", ", where, ", \"args\": {\"name\": ", quoted(name),
             "}},\n{\"name\": \"", what, "_sort_index\", ", where,
             ", \"args\": {\"sort_index\": ", std::string_view(what) == "process" ? group : track, "}}");
}

/// Times: of TraceFile::now().
struct TrackSpan {
  int64_t group, track, begin, end;
};

const std::string kNoPart;

struct Label {
  const char* category;
  const char* prefix;       // precedes the name
  const std::string& name;  // as JSON has it
  int64_t micro_batch = -1;
  const std::string& part = kNoPart;  // the part of the user's program
};

// Thousands of them in a step: no stream, and no JSON library.
void addSpan(std::string& out, const Label& label, const TrackSpan& span) {
  out += cat(",\n{\"cat\": \"", label.category, "\", \"name\": \"", label.prefix, label.name);
  if (label.micro_batch >= 0)
    out += cat(" [", label.micro_batch, "]\", \"args\": {\"micro_batch\": ", label.micro_batch,
               label.part.empty() ? "" : ", \"part\": " + textOf(label.part), "}");
  else
    out += '"';
  out +=
      cat(", \"ph\": \"X\", \"pid\": ", span.group, ", \"tid\": ", span.track, ", \"ts\": ", microseconds(span.begin),
          ", \"dur\": ", microseconds(std::max<int64_t>(0, span.end - span.begin)), "}");
}

void addSpan(std::string& out, const char* category, const std::string& name, const TrackSpan& span) {
  addSpan(out, {category, "", name}, span);
}

/// The part of the user's program that a stage runs; empty if it has no name.
const std::string& programPartOf(const session::Compiled& compiled, size_t stage) {
  if (stage >= compiled.stages.size()) return kNoPart;
  const std::string& name = compiled.stages[stage].name;
  return name.find_first_not_of("0123456789") == std::string::npos ? kNoPart : name;
}

/// The actions of a step by segment, in the order in which they completed.
class Completions {
 public:
  Completions(size_t num_segments, const std::vector<runtime::ActionTime>& actions, size_t first, size_t end)
      : done_(num_segments) {
    for (size_t i = first; i < end; ++i) done_[actions[i].segment].push_back(&actions[i]);
  }
  /// What the action waited for longest; null: for nothing that ran in this process.
  const runtime::ActionTime* lastOf(const std::vector<exe::Wait>& waits) const {
    const runtime::ActionTime* last = nullptr;
    for (const exe::Wait& wait : waits) {
      const auto& done = done_[wait.segment];
      const auto index = static_cast<size_t>(std::max<int64_t>(1, wait.completions)) - 1;
      if (index < done.size() && (!last || done[index]->end_ns > last->end_ns)) last = done[index];
    }
    return last;
  }

 private:
  std::vector<std::vector<const runtime::ActionTime*>> done_;
};

}  // namespace

Timeline::Timeline(Sink sink, std::string name) : sink_(std::move(sink)), name_(std::move(name)), group_(newGroup()) {}

void Timeline::nameTracks(const session::Compiled& compiled, std::string& lines) {
  const exe::Executable& executable = compiled.executable;
  lines += named("process", group_, kHostTrack, cat(name_, ", measured"));
  lines += named("thread", group_, kHostTrack, "host");
  for (size_t w = 0; w < executable.workers.size(); ++w) {
    const exe::WorkerProgram& worker = executable.workers[w];
    if (worker.actions.empty()) continue;
    const std::string device =
        cat(executable.replicas > 1 ? cat("replica ", worker.replica, ", ") : "", "device ", worker.device);
    std::string name = device;
    if (exe::addsUp(worker))
      name += ", sums over processes";
    else if (worker.isLink())
      name += worker.from >= 0 ? cat(", from space ", worker.from) : cat(", to space ", worker.to);
    const char* separator = ": ";
    const size_t num_stages = compiled.stages.size() / static_cast<size_t>(executable.replicas);
    std::set<int32_t> stages;
    if (!worker.isLink())
      for (const exe::Action& action : worker.actions) stages.insert(executable.segments[action.segment].stage);
    for (const int32_t stage : stages) {
      const std::string number = cat(stage);
      const std::string& own = compiled.stages[worker.replica * num_stages + static_cast<size_t>(stage)].name;
      name += cat(std::exchange(separator, ", "), "stage ", number);
      if (own != number) name += cat(" (", own, ")");
    }
    const auto track = static_cast<int64_t>(w) + 1;
    lines += named("thread", group_, track, name);
    if (std::ranges::any_of(worker.actions, [](const exe::Action& action) { return !action.fetches.empty(); }))
      lines += named("thread", group_, kPagingTracks + track, cat(device, ", memory"));
  }
  for (const exe::Segment& segment : executable.segments) {
    const std::string text = quoted(segment.name);
    names_.push_back(text.substr(1, text.size() - 2));
  }
}

// Times of actions count from the beginning of a call, over all its steps. `step` has the beginning of this one.
void Timeline::addStep(const session::Compiled& compiled, const std::vector<runtime::ActionTime>& actions, size_t first,
                       size_t end, const session::Handover& step, std::string& lines) const {
  const exe::Executable& executable = compiled.executable;
  const int64_t zero = step.begin - step.before_ns;
  const Completions completions(executable.segments.size(), actions, first, end);
  size_t index = 0;  // within the worker's program
  for (size_t i = first; i < end; ++i, ++index) {
    const runtime::ActionTime& action = actions[i];
    const bool is_first = i == first || actions[i - 1].worker != action.worker;
    if (is_first) index = 0;
    const exe::Action& planned = executable.workers[action.worker].actions[index];
    const int64_t track = action.worker + 1;
    int64_t free_ns = is_first ? step.before_ns : actions[i - 1].end_ns;  // from then on it could have gone on
    const runtime::ActionTime* awaited = completions.lastOf(planned.waits);
    if (awaited && awaited->end_ns > free_ns) {
      const int64_t over_ns = std::min(awaited->end_ns, action.begin_ns);
      const Label label{"wait", "wait for ", names_[awaited->segment], awaited->micro_batch};
      addSpan(lines, label, {group_, track, zero + free_ns, zero + over_ns});
      free_ns = over_ns;
    }
    if (!planned.fetches.empty() && action.begin_ns > free_ns)
      addSpan(lines, "wait", "wait for memory", {group_, track, zero + free_ns, zero + action.begin_ns});
    const auto segment = static_cast<size_t>(action.segment);
    const char* category = exe::directionName(executable.segments[segment].direction);
    const auto stage = static_cast<size_t>(executable.segments[segment].stage);
    addSpan(lines, {category, "", names_[segment], action.micro_batch, programPartOf(compiled, stage)},
            {group_, track, zero + action.begin_ns, zero + action.end_ns});
  }
}

void Timeline::note(session::Session& session) {
  const auto& parts = session.parts();
  const session::Compiled& compiled = *parts.compiled;
  std::string lines;
  if (calls_++ == 0) nameTracks(compiled, lines);
  const std::vector<runtime::ActionTime>& actions = parts.last_step.actions;
  const size_t steps = parts.handovers.size();
  const int64_t call = parts.call_begin;
  addSpan(lines, "host", cat("call ", calls_), {group_, kHostTrack, call, call + parts.recent.back().call_ns});
  for (size_t s = 0; s < steps; ++s) {
    const session::Handover& step = parts.handovers[s];
    const int64_t next_ns = s + 1 < steps ? parts.handovers[s + 1].before_ns : parts.last_step.wall_ns;
    addSpan(lines, "host", "inputs", {group_, kHostTrack, call + step.asked_ns, call + step.bound_ns});
    const int64_t over = step.begin + next_ns - step.before_ns;
    addSpan(lines, "host", "step", {group_, kHostTrack, step.begin, over});
    if (s + 1 == steps) addSpan(lines, "host", "results", {group_, kHostTrack, over, call + parts.results_ns});
    addStep(compiled, actions, actions.size() * s / steps, actions.size() * (s + 1) / steps, step, lines);
  }
  // Those of a step are not told from those of the one before: what is released behind a step ends later.
  const int64_t zero = parts.handovers.empty() ? call : parts.handovers.front().begin;
  for (const runtime::PagingTime& paging : parts.last_step.paging)
    addSpan(lines, "memory", paging.is_fetch ? "fetch" : "release",
            {group_, kPagingTracks + paging.worker + 1, zero + paging.begin_ns, zero + paging.end_ns});
  sink_(lines);
}

void Timeline::predict(session::Session& session) {
  const auto& parts = session.parts();
  if (!parts.compiled || parts.handovers.empty()) return;
  std::optional<plan::Prediction> prediction;
  try {
    const plan::PlanOptions& options = session.plan().options;
    const exe::Executable& executable = parts.compiled->executable;
    plan::PredictOptions asked{.schedule = options.schedule,
                               .training = executable.training,
                               .device_iterations = executable.device_iterations,
                               .accumulation = executable.accumulation,
                               .most_held = options.most_held};
    plan::Chain chain = plan::parseChain(session.costs());
    chain.costs.host_ns = 0;  // it is outside of the step
    prediction = plan::predict(chain, asked);
  } catch (const UserError&) {
    return;  // E0705: the program came from a file without its plan; E0404: the simulator has no such schedule
  }
  const int64_t group = group_ + 1, begin = parts.handovers.front().begin;
  std::string lines = named("process", group, 0, cat(name_, ", predicted"));
  for (size_t w = 0; w < prediction->device_of.size(); ++w) {
    const auto track = static_cast<int64_t>(w) + 1;
    lines += named("thread", group, track, cat("device ", prediction->device_of[w]));
    for (const schedule::TimedAction& timed : prediction->run.actions[w]) {
      const auto direction = static_cast<exe::Direction>(timed.action.direction);
      addSpan(lines,
              {exe::directionName(direction), "", exe::taskName(direction, timed.action.stage),
               timed.action.micro_batch, programPartOf(*parts.compiled, static_cast<size_t>(timed.action.stage))},
              {group, track, begin + timed.start_ns, begin + timed.end_ns});
    }
  }
  sink_(lines);
}

}  // namespace abele::report
