// The text forms of the simulator: costs in, figures and traces out. docs/simulator.md.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "plan/predict.h"
#include "plan/timetable.h"

namespace abele::plan {
namespace {

constexpr int64_t kMostStages = 100'000;
constexpr std::string_view kLetters = "FBWU";  // by direction

// Just enough JSON for a file of costs: objects, arrays, strings without escapes, numbers. Unknown keys are faults: a
// misspelt cost would silently be its default.
class ChainReader {
 public:
  explicit ChainReader(const std::string& text) : text_(text) {}

  Chain run() {
    readObject([&](const std::string& key) {
      if (key == "stages")
        readArray([&] { readStage(); });
      else if (key == "hop_ns")
        chain_.costs.hop_ns = readInteger();
      else if (key == "action_ns")
        chain_.costs.action_ns = readInteger();
      else if (key == "host_ns")
        chain_.costs.host_ns = readInteger();
      else if (key == "cores")
        chain_.costs.cores = static_cast<int>(std::clamp<int64_t>(readInteger(), -1, kMostStages));
      else
        fail(cat("unknown key \"", key, "\""), "stages, hop_ns, action_ns, host_ns or cores");
    });
    skipSpace();
    if (at_ != text_.size()) fail("text behind the costs", "the end of the file");
    if (!has_memory_) chain_.costs.memory.clear();
    if (!has_split_) chain_.split_memory.clear();
    if (!has_sharded_) chain_.sharded_memory.clear();
    if (!has_device_) chain_.device_of.clear();
    return std::move(chain_);
  }

 private:
  void readStage() {
    StageCost cost{0, 0, 0, 0};
    StageMemory memory;
    std::optional<StageMemory> split, sharded;
    int64_t device = static_cast<int64_t>(chain_.device_of.size()), repeat = 1;
    bool placed = false;
    readObject([&](const std::string& key) {
      if (readMemory(key, memory)) return;
      if (key == "split") return readMemory(split.emplace());
      if (key == "sharded") return readMemory(sharded.emplace());
      const int64_t value = readInteger();
      if (key == "forward_ns")
        cost.forward_ns = value;
      else if (key == "backward_ns")
        cost.backward_ns = value;
      else if (key == "weight_grad_ns")
        cost.weight_grad_ns = value;
      else if (key == "update_ns")
        cost.update_ns = value;
      else if (key == "persistent_bytes")
        memory.persistent_bytes = value;
      else if (key == "repeat")
        repeat = value;
      else if (key == "device")
        device = value, placed = true;
      else
        fail(cat("unknown key \"", key, "\""),
             "forward_ns, backward_ns, weight_grad_ns, update_ns, persistent_bytes, stash_bytes, transient_bytes, "
             "users, split, sharded, device or repeat");
    });
    if (repeat < 1 || static_cast<int64_t>(chain_.costs.stages.size()) + repeat > kMostStages)
      fail(cat("repeat ", repeat), cat("1 or more, and at most ", kMostStages, " stages"));
    if (device > kMostStages) fail(cat("device ", device), cat("at most ", kMostStages));
    // Of each copy of the stage: a short text must not ask for all memory.
    size_t users = memory.users.size();
    for (const auto& other : {split, sharded}) users += other ? other->users.size() : 0;
    users_ += repeat * static_cast<int64_t>(users);
    if (users_ > kMostStages) fail(cat(users_, " users"), cat("at most ", kMostStages, " users of all stages"));
    has_memory_ |= memory != StageMemory{};
    has_device_ |= placed;
    has_split_ |= split.has_value();
    has_sharded_ |= sharded.has_value();
    for (std::optional<StageMemory>* other : {&split, &sharded}) {
      if (!*other) *other = memory;
      (*other)->persistent_bytes = memory.persistent_bytes;
    }
    for (int64_t i = 0; i < repeat; ++i) {
      chain_.costs.stages.push_back(cost);
      chain_.costs.memory.push_back(memory);
      chain_.split_memory.push_back(*split);
      chain_.sharded_memory.push_back(*sharded);
      chain_.device_of.push_back(static_cast<int>(placed ? device : device + i));
    }
  }

  // What differs between kinds of schedules. False for other keys.
  bool readMemory(const std::string& key, StageMemory& memory) {
    if (key == "stash_bytes")
      memory.stash_bytes = readInteger();
    else if (key == "transient_bytes")
      memory.transient_bytes = readInteger();
    else if (key == "users")
      readArray([&] { memory.users.push_back(readTask()); });
    else
      return false;
    return true;
  }
  void readMemory(StageMemory& memory) {
    readObject([&](const std::string& key) {
      if (!readMemory(key, memory)) fail(cat("unknown key \"", key, "\""), "stash_bytes, transient_bytes or users");
    });
  }

  // "B12": the backward of stage 12.
  Task readTask() {
    const std::string text = readString();
    const size_t direction = text.empty() ? std::string::npos : kLetters.find(text[0]);
    int32_t stage = -1;
    const char* end = text.data() + text.size();
    const bool is_read = direction != std::string::npos && std::from_chars(text.data() + 1, end, stage).ptr == end;
    if (!is_read || stage < 0 || text.size() < 2) fail(cat("\"", text, "\""), "F, B, W or U and a stage: \"B0\"");
    return {stage, static_cast<ir::Direction>(direction)};
  }

  template <class Fn>
  void readObject(Fn&& member) {
    expect('{');
    if (accept('}')) return;
    do {
      const std::string key = readString();
      expect(':');
      member(key);
    } while (accept(','));
    expect('}');
  }
  template <class Fn>
  void readArray(Fn&& element) {
    expect('[');
    if (accept(']')) return;
    do {
      element();
    } while (accept(','));
    expect(']');
  }

  std::string readString() {
    expect('"');
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') ++at_;
    if (at_ == text_.size() || text_[at_] != '"') fail("a string that does not end", "\"");
    return text_.substr(begin, at_++ - begin);
  }

  // Whole numbers; fractions are rounded, so that times may be averages.
  int64_t readInteger() {
    skipSpace();
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value) || std::abs(value) > 9e15) fail("no number", "a number");
    at_ = static_cast<size_t>(end - text_.data());
    return std::llround(value);
  }

  void skipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool accept(char c) {
    skipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(at_ == text_.size() ? "the text ends" : cat("'", text_[at_], "'"), cat("'", c, "'"));
  }

  [[noreturn]] void fail(std::string found, std::string expected) const {
    const int64_t line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    throwUser(
        ErrorCode::E0404,
        {.what = cat("costs that cannot be read: ", found), .at = cat("line ", line), .expected = std::move(expected)});
  }

  const std::string& text_;
  size_t at_ = 0;
  Chain chain_;
  int64_t users_ = 0;  // of frames, in all stages
  bool has_memory_ = false, has_device_ = false, has_split_ = false, has_sharded_ = false;
};

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

// Without braces: the members of an object.
std::string memoryMembers(const StageMemory& m) {
  std::string out = cat("\"stash_bytes\": ", m.stash_bytes, ", \"transient_bytes\": ", m.transient_bytes);
  if (m.users.empty()) return out;
  out += ", \"users\": [";
  for (size_t i = 0; i < m.users.size(); ++i)
    out += cat(i ? ", \"" : "\"", kLetters[static_cast<size_t>(m.users[i].direction)], m.users[i].stage, "\"");
  return out + "]";
}

std::string microseconds(int64_t ns) { return fixed(static_cast<double>(ns) / 1e3, 3); }

}  // namespace

Chain parseChain(const std::string& json) { return ChainReader(json).run(); }

std::string chainJson(const Chain& chain) {
  const CostModel& costs = chain.costs;
  std::string out = cat("{\n  \"hop_ns\": ", costs.hop_ns, ", \"action_ns\": ", costs.action_ns,
                        ", \"host_ns\": ", costs.host_ns, ", \"cores\": ", costs.cores, ",\n  \"stages\": [");
  for (size_t s = 0; s < chain.costs.stages.size(); ++s) {
    const StageCost& c = chain.costs.stages[s];
    out += cat(s ? ",\n    " : "\n    ", "{\"forward_ns\": ", c.forward_ns, ", \"backward_ns\": ", c.backward_ns,
               ", \"weight_grad_ns\": ", c.weight_grad_ns, ", \"update_ns\": ", c.update_ns);
    if (!chain.device_of.empty()) out += cat(", \"device\": ", chain.device_of[s]);
    if (!chain.costs.memory.empty()) {
      const StageMemory& m = chain.costs.memory[s];
      out += cat(", \"persistent_bytes\": ", m.persistent_bytes, ", ", memoryMembers(m));
    }
    if (!chain.split_memory.empty()) out += cat(", \"split\": {", memoryMembers(chain.split_memory[s]), "}");
    if (!chain.sharded_memory.empty()) out += cat(", \"sharded\": {", memoryMembers(chain.sharded_memory[s]), "}");
    out += "}";
  }
  return out + "\n  ]\n}\n";
}

std::string predictionJson(const Prediction& p) {
  std::string out =
      cat("{\"schedule\": \"", scheduleName(p.options.schedule), "\", \"devices\": ", p.device_of.size(),
          ", \"stages\": ", p.num_stages, ", \"device_iterations\": ", p.options.device_iterations,
          ", \"micro_batches\": ", p.options.accumulation, ", \"step_ns\": ", p.run.step_ns,
          ", \"bubble\": ", fixed(p.run.bubble(), 6), ", \"peak_bytes\": ", p.peakBytes(), ", \"held\": [");
  for (size_t s = 0; s < p.run.held.size(); ++s) out += cat(s ? ", " : "", p.run.held[s]);
  out += "], \"frames\": [";
  for (size_t s = 0; s < p.run.frames.size(); ++s) out += cat(s ? ", " : "", p.run.frames[s]);
  out += "], \"workers\": [";
  for (size_t w = 0; w < p.device_of.size(); ++w) {
    const WorkerTimes& times = p.run.workers[w];
    const double busy = static_cast<double>(times.busy_ns);
    out += cat(w ? ", " : "", "{\"device\": ", p.device_of[w], ", \"busy_ns\": ", times.busy_ns,
               ", \"idle_ns\": ", times.idle_ns,
               ", \"utilisation\": ", fixed(p.run.step_ns ? busy / static_cast<double>(p.run.step_ns) : 0, 6),
               ", \"peak_bytes\": ", times.peak_bytes, ", \"memory\": [");
    for (size_t i = 0; i < p.memory[w].size(); ++i)
      out += cat(i ? ", " : "", "[", p.memory[w][i].time_ns, ", ", p.memory[w][i].bytes, "]");
    out += "]}";
  }
  return out + "]}";
}

std::string chromeTrace(const Prediction& p) {
  std::string out = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  const char* separator = "\n";
  auto event = [&](const std::string& text) {
    out += separator + text;
    separator = ",\n";
  };
  const bool with_stage = static_cast<size_t>(p.num_stages) > p.device_of.size();
  for (size_t w = 0; w < p.device_of.size(); ++w) {
    const std::string where = cat("\"pid\": 0, \"tid\": ", w);
    event(cat("{\"name\": \"thread_name\", \"ph\": \"M\", ", where, ", \"args\": {\"name\": \"device ", p.device_of[w],
              "\"}}"));
    for (const TimedAction& t : p.run.actions[w])
      event(cat("{\"name\": \"", actionText(t.action, with_stage), "\", \"cat\": \"", actionText(t.action, false)[0],
                "\", \"ph\": \"X\", ", where, ", \"ts\": ", microseconds(t.start_ns),
                ", \"dur\": ", microseconds(t.end_ns - t.start_ns), ", \"args\": {\"stage\": ", t.action.stage,
                ", \"micro_batch\": ", t.action.micro_batch, "}}"));
    if (p.memory[w].size() > 1 || p.memory[w].front().bytes > 0)
      for (const MemoryPoint& point : p.memory[w])
        event(cat("{\"name\": \"memory of device ", p.device_of[w], "\", \"ph\": \"C\", ", where,
                  ", \"ts\": ", microseconds(point.time_ns), ", \"args\": {\"bytes\": ", point.bytes, "}}"));
  }
  return out + "\n]}\n";
}

}  // namespace abele::plan
