// The text forms of the simulator: reads costs, writes figures and traces. Docs: docs/simulator.md.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/joined.h"
#include "plan/memory_report.h"
#include "plan/predict.h"
#include "schedule/machine_json.h"
#include "schedule/timetable.h"

namespace abele::plan {
namespace {

constexpr int64_t kMostStages = 100'000;

using schedule::Json;
using Members = schedule::JsonReader::Members;

// Unknown keys are faults, because a misspelt cost would silently get its default.
class ChainReader {
 public:
  explicit ChainReader(const std::string& text) : reader_("costs", text) {}

  Chain run() {
    reader_.readMembers(
        reader_.root(),
        {{"stages", [&](const Json& list) { reader_.readList(list, [&](const Json& stage) { readStage(stage); }); }},
         {"hop_ns", reader_.into(chain_.costs.hop_ns)},
         {"action_ns", reader_.into(chain_.costs.action_ns)},
         {"host_ns", reader_.into(chain_.costs.host_ns)},
         {"cores",
          [&](const Json& value) {
            chain_.costs.cores = static_cast<int>(std::clamp<int64_t>(reader_.readInteger(value), -1, kMostStages));
          }},
         {"handovers",
          [&](const Json& list) { reader_.readList(list, [&](const Json& handover) { readHandover(handover); }); }},
         {"machine", [&](const Json& value) { chain_.machine = schedule::readMachine(reader_, value); }},
         {"replicas", reader_.into(chain_.replication.replicas)},
         {"replicas_together", reader_.into(chain_.replication.is_together)},
         {"early_sums", reader_.into(chain_.replication.is_early)}});
    // The first stage has no stage before it and the last has none after it, so such handovers are dropped.
    std::erase_if(chain_.handovers, [&](const schedule::Handover& h) {
      return h.to.stage < 0 || static_cast<size_t>(h.to.stage) >= chain_.costs.stages.size();
    });
    chain_.handovers.insert(chain_.handovers.end(), named_.begin(), named_.end());
    if (!has_memory_) chain_.costs.memory.clear();
    if (!has_split_) chain_.split_memory.clear();
    if (!has_sharded_) chain_.sharded_memory.clear();
    if (!has_device_) chain_.device_of.clear();
    if (!has_gradients_) chain_.gradient_bytes.clear();
    return std::move(chain_);
  }

 private:
  void readStage(const Json& object) {
    schedule::StageCost cost{0, 0, 0, 0};
    schedule::StageMemory memory;
    std::optional<schedule::StageMemory> split, sharded;
    int64_t device = static_cast<int64_t>(chain_.device_of.size()), repeat = 1;
    int64_t forward_bytes = 0, backward_bytes = 0, gradient_bytes = 0;
    bool placed = false;
    Members members = {{"forward_ns", reader_.into(cost.forward_ns)},
                       {"backward_ns", reader_.into(cost.backward_ns)},
                       {"weight_grad_ns", reader_.into(cost.weight_grad_ns)},
                       {"update_ns", reader_.into(cost.update_ns)},
                       {"persistent_bytes", reader_.into(memory.persistent_bytes)}};
    std::ranges::move(membersOf(memory), std::back_inserter(members));
    std::ranges::move(Members{{"split", [&](const Json& value) { readMemory(value, split.emplace()); }},
                              {"sharded", [&](const Json& value) { readMemory(value, sharded.emplace()); }},
                              {"forward_bytes", reader_.into(forward_bytes)},
                              {"backward_bytes", reader_.into(backward_bytes)},
                              {"gradient_bytes", reader_.into(gradient_bytes)},
                              {"device",
                               [&](const Json& value) {
                                 device = reader_.readInteger(value);
                                 placed = true;
                               }},
                              {"repeat", reader_.into(repeat)}},
                      std::back_inserter(members));
    reader_.readMembers(object, members);
    if (repeat < 1 || static_cast<int64_t>(chain_.costs.stages.size()) + repeat > kMostStages)
      reader_.fail(object, cat("repeat ", repeat), cat("1 or more, and at most ", kMostStages, " stages"));
    if (device > kMostStages) reader_.fail(object, cat("device ", device), cat("at most ", kMostStages));
    // Counts the users in each copy of the stage: a short text must not use up all memory.
    size_t users = countUsers(memory);
    for (const auto& other : {split, sharded}) users += other ? countUsers(*other) : 0;
    users_ += repeat * static_cast<int64_t>(users);
    if (users_ > kMostStages)
      reader_.fail(object, cat(users_, " users"), cat("at most ", kMostStages, " users of all stages"));
    has_memory_ |= memory != schedule::StageMemory{};
    has_device_ |= placed;
    has_split_ |= split.has_value();
    has_sharded_ |= sharded.has_value();
    has_gradients_ |= gradient_bytes != 0;
    for (std::optional<schedule::StageMemory>* other : {&split, &sharded}) {
      if (!*other) *other = memory;
      (*other)->persistent_bytes = memory.persistent_bytes;
    }
    for (int64_t i = 0; i < repeat; ++i) {
      const auto s = static_cast<int32_t>(chain_.costs.stages.size());
      using ir::Direction;
      if (forward_bytes != 0)
        chain_.handovers.push_back({{s, Direction::kForward}, {s + 1, Direction::kForward}, forward_bytes});
      if (backward_bytes != 0)
        chain_.handovers.push_back({{s, Direction::kBackward}, {s - 1, Direction::kBackward}, backward_bytes});
      chain_.costs.stages.push_back(cost);
      chain_.costs.memory.push_back(memory);
      chain_.split_memory.push_back(*split);
      chain_.sharded_memory.push_back(*sharded);
      chain_.gradient_bytes.push_back(gradient_bytes);
      chain_.device_of.push_back(static_cast<int>(placed ? device : device + i));
    }
  }

  void readHandover(const Json& object) {
    schedule::Handover h{{-1, ir::Direction::kForward}, {-1, ir::Direction::kForward}, 0};
    reader_.readMembers(object, {{"from", [&](const Json& value) { h.from = readTask(value); }},
                                 {"to", [&](const Json& value) { h.to = readTask(value); }},
                                 {"bytes", reader_.into(h.bytes)},
                                 {"placed", reader_.into(h.is_placed)}});
    if (h.from.stage < 0 || h.to.stage < 0) reader_.fail(object, "a handover without tasks", "\"from\" and \"to\"");
    named_.push_back(h);
  }

  // The keys that differ between kinds of schedules.
  Members membersOf(schedule::StageMemory& memory) {
    return {{"stash_bytes", reader_.into(memory.stash_bytes)},
            {"transient_bytes", reader_.into(memory.transient_bytes)},
            {"users", [&](const Json& list) { readUsers(list, memory.users); }},
            {"rings",
             [&](const Json& list) {
               reader_.readList(list, [&](const Json& ring) { readRing(ring, memory.rings.emplace_back()); });
             }},
            {"apart_transient_bytes", reader_.into(memory.apart_transient_bytes)}};
  }
  void readMemory(const Json& object, schedule::StageMemory& memory) { reader_.readMembers(object, membersOf(memory)); }
  void readRing(const Json& object, schedule::StageRing& ring) {
    reader_.readMembers(object, {{"bytes", reader_.into(ring.bytes)},
                                 {"users", [&](const Json& list) { readUsers(list, ring.users); }}});
    if (ring.users.empty()) reader_.fail(object, "a ring without users", "\"users\"");
  }
  void readUsers(const Json& list, std::vector<Task>& users) {
    reader_.readList(list, [&](const Json& task) { users.push_back(readTask(task)); });
  }
  static size_t countUsers(const schedule::StageMemory& memory) {
    size_t users = memory.users.size();
    for (const schedule::StageRing& ring : memory.rings) users += ring.users.size();
    return users;
  }

  // Reads "B12", the backward of stage 12.
  Task readTask(const Json& value) const {
    const std::string& text = reader_.readString(value);
    const size_t direction = text.empty() ? std::string::npos : kTaskLetters.find(text[0]);
    int32_t stage = -1;
    const char* end = text.data() + text.size();
    const bool is_read = direction != std::string::npos && std::from_chars(text.data() + 1, end, stage).ptr == end;
    if (!is_read || stage < 0 || text.size() < 2)
      reader_.fail(value, cat("\"", text, "\""), "F, B, W or U and a stage: \"B0\"");
    return {stage, static_cast<ir::Direction>(direction)};
  }

  const schedule::JsonReader reader_;
  Chain chain_;
  std::vector<schedule::Handover> named_;  // from the list of named handovers
  int64_t users_ = 0;                      // users of frames, in all stages
  bool has_memory_ = false, has_device_ = false, has_split_ = false, has_sharded_ = false, has_gradients_ = false;
};

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

template <class Items, class Text = std::identity>
std::string listText(const Items& items, const Text& text = {}) {
  return cat("[", joined(items, text), "]");
}

std::string usersText(const std::vector<Task>& users) {
  return listText(users, [](const Task& task) { return cat("\"", taskText(task), "\""); });
}

// The members of an object, without its braces.
std::string memoryMembers(const schedule::StageMemory& m) {
  std::string out = cat("\"stash_bytes\": ", m.stash_bytes, ", \"transient_bytes\": ", m.transient_bytes);
  if (!m.users.empty()) out += cat(", \"users\": ", usersText(m.users));
  if (m.rings.empty()) return out;
  const auto ringText = [](const schedule::StageRing& ring) {
    return cat("{\"bytes\": ", ring.bytes, ", \"users\": ", usersText(ring.users), "}");
  };
  return cat(out, ", \"rings\": ", listText(m.rings, ringText),
             ", \"apart_transient_bytes\": ", m.apart_transient_bytes);
}

// The members before the stages, except the overheads; empty if all devices share one memory.
std::string machineMembers(const Chain& chain) {
  std::string out;
  if (chain.replication != schedule::Replication{})
    out += cat(",\n  \"replicas\": ", chain.replication.replicas,
               ", \"replicas_together\": ", chain.replication.is_together,
               ", \"early_sums\": ", chain.replication.is_early);
  if (chain.machine != schedule::Machine{})
    out += cat(",\n  \"machine\": ", schedule::machineJson(chain.machine).dump());
  if (chain.handovers.empty()) return out;
  const auto handoverText = [](const schedule::Handover& h) {
    return cat("\n    {\"from\": \"", taskText(h.from), "\", \"to\": \"", taskText(h.to), "\", \"bytes\": ", h.bytes,
               h.is_placed ? ", \"placed\": true}" : "}");
  };
  return cat(out, ",\n  \"handovers\": [", joined(chain.handovers, handoverText, ","), "\n  ]");
}

std::string transfersText(const Prediction& p) {
  std::string out = ", \"transfers\": [";
  for (size_t i = 0; i < p.transfers.size(); ++i) {
    const schedule::Transfer& t = p.transfers[i];
    const schedule::TransferTimes& times = p.run.transfers[i];
    out += cat(i ? ", " : "", "{\"from\": \"", taskText(t.from), "\", \"to\": \"", taskText(t.to),
               "\", \"link\": ", nlohmann::json(t.name).dump(), ", \"devices\": [", t.from_device, ", ", t.to_device,
               "], \"bytes\": ", t.bytes, ", \"time_ns\": ", t.time_ns, ", \"messages\": ", times.messages,
               ", \"busy_ns\": ", times.busy_ns, ", \"waiting_ns\": ", times.waiting_ns, "}");
  }
  return out + "]";
}

std::string microseconds(int64_t ns) { return fixed(static_cast<double>(ns) / 1e3, 3); }

}  // namespace

Chain parseChain(const std::string& json) { return ChainReader(json).run(); }

std::string chainJson(const Chain& chain) {
  const schedule::CostModel& costs = chain.costs;
  std::string out =
      cat("{\n  \"hop_ns\": ", costs.hop_ns, ", \"action_ns\": ", costs.action_ns, ", \"host_ns\": ", costs.host_ns,
          ", \"cores\": ", costs.cores, machineMembers(chain), ",\n  \"stages\": [");
  for (size_t s = 0; s < chain.costs.stages.size(); ++s) {
    const schedule::StageCost& c = chain.costs.stages[s];
    out += cat(s ? ",\n    " : "\n    ", "{\"forward_ns\": ", c.forward_ns, ", \"backward_ns\": ", c.backward_ns,
               ", \"weight_grad_ns\": ", c.weight_grad_ns, ", \"update_ns\": ", c.update_ns);
    if (!chain.device_of.empty()) out += cat(", \"device\": ", chain.device_of[s]);
    if (!chain.gradient_bytes.empty()) out += cat(", \"gradient_bytes\": ", chain.gradient_bytes[s]);
    if (!chain.costs.memory.empty()) {
      const schedule::StageMemory& m = chain.costs.memory[s];
      out += cat(", \"persistent_bytes\": ", m.persistent_bytes, ", ", memoryMembers(m));
    }
    if (!chain.split_memory.empty()) out += cat(", \"split\": {", memoryMembers(chain.split_memory[s]), "}");
    if (!chain.sharded_memory.empty()) out += cat(", \"sharded\": {", memoryMembers(chain.sharded_memory[s]), "}");
    out += "}";
  }
  return out + "\n  ]\n}\n";
}

int64_t spareBytes(const Prediction& p, const MemoryLimits& limits) {
  std::vector<int64_t> peaks;
  for (const schedule::WorkerTimes& times : p.run.workers) peaks.push_back(times.peak_bytes);
  return spareBytes(p.device_of, peaks, limits);
}

std::string predictionJson(const Prediction& p, const MemoryLimits& limits) {
  const auto fits = [&](int64_t spare) {
    if (!limits.any()) return std::string();
    std::string text = cat(", \"fits\": ", spare >= 0 ? "true" : "false");
    if (spare < std::numeric_limits<int64_t>::max()) text += cat(", \"spare_bytes\": ", spare);
    return text;
  };
  std::string out =
      cat("{\"schedule\": \"", schedule::scheduleName(p.options.schedule), "\", \"devices\": ", p.device_of.size(),
          ", \"stages\": ", p.num_stages, ", \"device_iterations\": ", p.options.device_iterations,
          ", \"micro_batches\": ", p.options.accumulation, ", \"step_ns\": ", p.run.step_ns,
          ", \"bubble\": ", fixed(p.run.bubble(), 6), ", \"peak_bytes\": ", p.peakBytes(), fits(spareBytes(p, limits)),
          ", \"held\": ", listText(p.run.held), ", \"frames\": ", listText(p.run.frames), ", \"workers\": [");
  for (size_t w = 0; w < p.device_of.size(); ++w) {
    const schedule::WorkerTimes& times = p.run.workers[w];
    const double busy = static_cast<double>(times.busy_ns);
    out += cat(
        w ? ", " : "", "{\"device\": ", p.device_of[w], ", \"busy_ns\": ", times.busy_ns,
        ", \"idle_ns\": ", times.idle_ns,
        ", \"utilisation\": ", fixed(p.run.step_ns ? busy / static_cast<double>(p.run.step_ns) : 0, 6),
        ", \"peak_bytes\": ", times.peak_bytes, fits(limits.spare(p.device_of[w], times.peak_bytes)), ", \"memory\": ",
        listText(p.memory[w],
                 [](const schedule::MemoryPoint& point) { return cat("[", point.time_ns, ", ", point.bytes, "]"); }),
        "}");
  }
  out += "]";
  if (p.replication.replicas > 1)
    out += cat(", \"replicas\": ", p.replication.replicas, ", \"sums_ns\": ", listText(p.reduce_ns));
  if (!p.transfers.empty()) out += transfersText(p);
  return out + "}";
}

std::string chromeTrace(const Prediction& p) {
  std::vector<std::string> events;
  const bool with_stage = static_cast<size_t>(p.num_stages) > p.device_of.size();
  for (size_t w = 0; w < p.device_of.size(); ++w) {
    const std::string where = cat("\"pid\": 0, \"tid\": ", w);
    events.push_back(cat("{\"name\": \"thread_name\", \"ph\": \"M\", ", where, ", \"args\": {\"name\": \"device ",
                         p.device_of[w], "\"}}"));
    for (const schedule::TimedAction& t : p.run.actions[w])
      events.push_back(cat("{\"name\": \"", schedule::actionText(t.action, with_stage), "\", \"cat\": \"",
                           schedule::actionText(t.action, false)[0], "\", \"ph\": \"X\", ", where,
                           ", \"ts\": ", microseconds(t.start_ns), ", \"dur\": ", microseconds(t.end_ns - t.start_ns),
                           ", \"args\": {\"stage\": ", t.action.stage, ", \"micro_batch\": ", t.action.micro_batch,
                           "}}"));
    if (p.memory[w].size() > 1 || p.memory[w].front().bytes > 0)
      for (const schedule::MemoryPoint& point : p.memory[w])
        events.push_back(cat("{\"name\": \"memory of device ", p.device_of[w], "\", \"ph\": \"C\", ", where,
                             ", \"ts\": ", microseconds(point.time_ns), ", \"args\": {\"bytes\": ", point.bytes, "}}"));
  }
  return cat("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", joined(events, {}, ",\n"), "\n]}\n");
}

}  // namespace abele::plan
