#include "plan/liveness.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/instructions.h"

namespace abele::plan {
namespace {

using ir::Direction;
using ir::ValueId;

std::string describe(const ir::Graph& graph, ValueId v) {
  const std::string& name = graph.values[v].name;
  return name.empty() ? cat("%", v) : cat("%", name);
}

std::string describe(const ir::Node& node) {
  return node.source.empty() ? node.op : cat(node.op, " (", node.source, ")");
}

class Analysis {
 public:
  Analysis(const ir::Graph& graph, const PlanOptions& options, const schedule::Schedule& schedule)
      : graph_(graph),
        sequential_(options.schedule == schedule::ScheduleKind::kSharded),
        sums_of_one_(options.accumulation == 1),
        touches_(graph.values.size()),
        made_by_(graph.values.size(), -1),
        input_of_(graph.values.size(), -1),
        in_order_(graph.stages.size(), true) {
    std::vector<int32_t> last(graph.stages.size(), 0);  // micro-batch, by stage
    for (const auto& actions : schedule.workers)
      for (const schedule::Action& a : actions) {
        if (a.direction == Direction::kUpdate) continue;
        const auto stage = static_cast<size_t>(a.stage);
        if (a.micro_batch < last[stage]) in_order_[stage] = false;
        last[stage] = a.micro_batch;
      }
  }

  Liveness run() {
    collectTouches();
    result_.buffer_of.assign(graph_.values.size(), -1);
    value_of_.assign(graph_.externals.size(), ir::kNone);
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const ir::Input& in = graph_.inputs[i];
      input_of_[in.value] = static_cast<int32_t>(i);
      if (in.kind != ir::InputKind::kArgument && value_of_[in.external] < 0) value_of_[in.external] = in.value;
      addBuffer(in.value);
    }
    chooseExternalUpdates();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) placeNode(static_cast<int32_t>(i));
    noteCopiesBack();
    checkExternals();
    return std::move(result_);
  }

 private:
  // --- touches -------------------------------------------------------------------------------------------------------
  void collectTouches() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const ir::Node& node = graph_.nodes[i];
      if (node.is_view) continue;
      const Touch touch{taskOf(node), static_cast<int32_t>(i)};
      forEachResult(node, [&](ValueId v) {
        const ValueId base = graph_.baseOf(v);
        if (made_by_[base] < 0) made_by_[base] = touch.position;
      });
      Touch read = touch;
      read.from_elsewhere = isTransfer(node);
      forEachOperand(node, [&](ValueId v) { addTouch(graph_.baseOf(v), read); });
      for (const ir::Write& w : node.writes) addTouch(graph_.baseOf(w.after), touch);
    }
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kResult) continue;
      // An output is copied out directly after the node that makes it. An input is copied at the start of the first
      // forward.
      const ValueId base = graph_.baseOf(out.value);
      const int32_t position = made_by_[base];
      addTouch(base, position >= 0 ? Touch{taskOf(graph_.nodes[position]), position} : Touch{{}, kTaskStart});
    }
  }

  void addTouch(ValueId base, const Touch& touch) {
    auto& list = touches_[base];
    if (list.empty() || list.back().position != touch.position || list.back().task != touch.task) list.push_back(touch);
  }

  // --- buffers -------------------------------------------------------------------------------------------------------
  void addBuffer(ValueId base) {
    Buffer buffer;
    buffer.input = input_of_[base];
    result_.buffer_of[base] = static_cast<int32_t>(result_.buffers.size());
    if (made_by_[base] >= 0) {
      const ir::Node& maker = graph_.nodes[made_by_[base]];
      buffer.touches.push_back({taskOf(maker), made_by_[base]});
      buffer.is_received = isReceive(maker);
    }
    result_.buffers.push_back(std::move(buffer));
    join(base, result_.buffer_of[base]);
  }

  void join(ValueId base, int32_t index) {
    Buffer& buffer = result_.buffers[index];
    result_.buffer_of[base] = index;
    buffer.members.push_back(base);
    buffer.touches.insert(buffer.touches.end(), touches_[base].begin(), touches_[base].end());
  }

  void placeNode(int32_t position) {
    const ir::Node& node = graph_.nodes[position];
    if (node.is_view) return;
    if (sums_of_one_ && ownOp(node.op) == OwnOp::kAccumulate) makeGradientInSum(node, position);
    for (const ir::Write& w : node.writes) {
      const ValueId before = graph_.baseOf(w.before), after = graph_.baseOf(w.after);
      if (result_.buffer_of[after] >= 0) continue;
      if (writesInPlace(node, position, before, after))
        join(after, result_.buffer_of[before]);
      else
        addBuffer(after);
    }
    for (const auto& group : node.results)
      for (ValueId v : group)
        if (v >= 0 && result_.buffer_of[graph_.baseOf(v)] < 0 && !touches_[graph_.baseOf(v)].empty())
          addBuffer(graph_.baseOf(v));
  }

  // What the touches of a buffer come to in each task. A value that many layers write in place, as the gradient that
  // flows past residual blocks, has touches of all of them, so each touch is looked at once.
  struct Span {
    Task task;
    int32_t first = 0, last = 0;  // positions
  };
  struct Spans {
    size_t num_touches = 0;  // those that are in `by_task`
    std::vector<Span> by_task;
  };
  const std::vector<Span>& spansOf(int32_t buffer) {
    Spans& spans = spans_[buffer];
    const std::vector<Touch>& touches = result_.buffers[buffer].touches;
    for (; spans.num_touches < touches.size(); ++spans.num_touches) {
      const Touch& t = touches[spans.num_touches];
      auto span = std::ranges::find(spans.by_task, t.task, &Span::task);
      if (span == spans.by_task.end()) span = spans.by_task.insert(span, {t.task, t.position, t.position});
      span->first = std::min(span->first, t.position);
      span->last = std::max(span->last, t.position);
    }
    return spans.by_task;
  }

  bool writesInPlace(const ir::Node& node, int32_t position, ValueId before, ValueId after) {
    const Buffer& buffer = result_.buffers[result_.buffer_of[before]];
    if (buffer.input >= 0) {
      if (graph_.inputs[buffer.input].kind == ir::InputKind::kArgument) return false;
      return isAlwaysInPlace(node) || updated_in_place_[after];
    }
    const Task task = taskOf(node);
    const int32_t made = made_by_[before];
    const Task maker = taskOf(graph_.nodes[made]);
    const bool is_transferred = isReceive(graph_.nodes[made]);
    // All other tasks that touch this memory must be done when this node runs. So a touch must be earlier in the same
    // task, in an earlier task of the same stage, or in the task that makes `before`, which this node waits for. If a
    // transfer makes `before`, this node waits for the link only, and the task that the value was brought for may still
    // read it.
    return std::ranges::all_of(spansOf(result_.buffer_of[before]), [&](const Span& span) {
      if (span.task == task) return span.last <= position;
      const bool is_made = span.task == maker && (!is_transferred || (span.first == made && span.last == made));
      return is_made || (span.task.stage == task.stage && span.task.direction < task.direction);
    });
  }

  // A sum of one gradient is that gradient. Backward makes it in the accumulator's memory if it fits exactly, and if no
  // other task and no later node reads it.
  void makeGradientInSum(const ir::Node& node, int32_t position) {
    const ir::Write& write = node.writes.at(0);
    const int32_t sum = result_.buffer_of[graph_.baseOf(write.before)];
    const ir::Value& gradient = graph_.values[node.args.at(1).i];
    const int32_t made = result_.buffer_of[gradient.base];
    if (made == sum || result_.buffers[made].input >= 0 || result_.buffers[made].is_received ||
        result_.buffers[sum].members.size() > 1)
      return;
    const Task task = taskOf(node);
    const auto& touches = result_.buffers[made].touches;
    if (gradient.offset != 0 || gradient.type != write.view || !fitsInto(result_.buffers[made], write.view) ||
        !std::ranges::all_of(touches, [&](const Touch& t) { return t.task == task && t.position <= position; }))
      return;
    const Buffer moved = std::exchange(result_.buffers[made], {});
    Buffer& into = result_.buffers[sum];
    for (ValueId member : moved.members) result_.buffer_of[member] = sum;
    into.members.insert(into.members.end(), moved.members.begin(), moved.members.end());
    into.touches.insert(into.touches.end(), moved.touches.begin(), moved.touches.end());
    into.is_sum_of_one = true;
  }

  bool fitsInto(const Buffer& buffer, const Type& type) const {
    return std::ranges::all_of(
        buffer.members, [&](ValueId base) { return graph_.values[base].type.extentBytes() == type.extentBytes(); });
  }

  // --- externals -----------------------------------------------------------------------------------------------------
  //
  // Updates and gradient sums own the external that they write: the schedule orders its readers.
  static bool isAlwaysInPlace(const ir::Node& node) {
    return node.direction == Direction::kUpdate || hasTrait(node.op, kSums) || ownOp(node.op) == OwnOp::kAdd;
  }

  // Tasks of one stage follow each other in the order of their directions.
  static std::pair<Direction, int32_t> timeOf(const Touch& t) { return {t.task.direction, t.position}; }
  std::pair<Direction, int32_t> timeOf(int32_t position) const { return {graph_.nodes[position].direction, position}; }
  // Returns true if no other micro-batch works between the two.
  bool followEachOther(const Task& a, const Task& b) const {
    return a == b || (a.stage == b.stage && in_order_[a.stage]);
  }

  // An external that is updated in every micro-batch (running statistics) may be written in place only if no task reads
  // it that may be at another micro-batch.
  void chooseExternalUpdates() {
    updated_in_place_.assign(graph_.values.size(), false);
    std::map<ValueId, std::pair<int32_t, ValueId>> writer;  // after -> node position, before
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      for (const ir::Write& w : graph_.nodes[i].writes)
        writer[graph_.baseOf(w.after)] = {static_cast<int32_t>(i), graph_.baseOf(w.before)};
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kUpdate) continue;
      std::vector<ValueId> chain;
      ValueId v = graph_.baseOf(out.value);
      // An optimizer's update comes after the writes of forward; the schedule orders it.
      for (auto it = writer.find(v); it != writer.end() && isAlwaysInPlace(graph_.nodes[it->second.first]);
           it = writer.find(v))
        v = it->second.second;
      bool fits = made_by_[v] >= 0;
      const Task task = fits ? taskOf(graph_.nodes[made_by_[v]]) : Task{};
      for (auto it = writer.find(v); fits && it != writer.end(); it = writer.find(v)) {
        const auto [position, before] = it->second;
        chain.push_back(v);
        fits = allIn(task, v) && allIn(task, before) && lastTouch(before) <= timeOf(position);
        v = before;
      }
      if (fits && input_of_[v] >= 0 && graph_.inputs[input_of_[v]].kind != ir::InputKind::kArgument &&
          graph_.inputs[input_of_[v]].external == out.target)
        for (ValueId member : chain) updated_in_place_[member] = true;
    }
  }

  bool allIn(const Task& task, ValueId base) const {
    return std::ranges::all_of(touches_[base],
                               [&](const Touch& t) { return isUpdate(t) || followEachOther(t.task, task); });
  }
  static bool isUpdate(const Touch& t) { return t.task.direction == Direction::kUpdate; }
  std::pair<Direction, int32_t> lastTouch(ValueId base) const {
    std::pair<Direction, int32_t> last = {Direction::kForward, kTaskStart};
    for (const Touch& t : touches_[base])
      if (!isUpdate(t)) last = std::max(last, timeOf(t));
    return last;
  }

  int32_t bufferOfExternal(int32_t external) const {
    const ValueId value = value_of_.at(external);
    return value < 0 ? -1 : result_.buffer_of[value];
  }

  void noteCopiesBack() {
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kUpdate) continue;
      const ValueId base = graph_.baseOf(out.value);
      const int32_t home = bufferOfExternal(out.target);
      ABELE_CHECK(home >= 0, "external ", out.target, " is updated but is not an input of the graph");
      if (result_.buffer_of[base] == home) continue;
      ABELE_CHECK(made_by_[base] >= 0, "external ", out.target, " takes over the memory of another input");
      if (result_.buffer_of[base] < 0) addBuffer(base);
      const Touch end{taskOf(graph_.nodes[made_by_[base]]), kTaskEnd};
      result_.buffers[result_.buffer_of[base]].touches.push_back(end);
      result_.buffers[home].touches.push_back(end);
      result_.copied_back.push_back(out);
    }
  }

  // The tasks that use an external which is written in every micro-batch must be at the same micro-batch. Tasks before
  // the one that copies the new contents back may then read the old ones.
  void checkExternals() const {
    for (const Buffer& buffer : result_.buffers) {
      if (buffer.input < 0 || buffer.is_sum_of_one) continue;
      for (size_t m = 1; m < buffer.members.size(); ++m) {
        const int32_t position = made_by_[buffer.members[m]];
        const ir::Node& writer = graph_.nodes[position];
        requireAlone(buffer, writer, [&](const Task& task) { return followEachOther(task, taskOf(writer)); });
        for (const Touch& t : touches_[buffer.members[m - 1]])
          if (t.task.direction != Direction::kUpdate && timeOf(t) > timeOf(position))
            reject(buffer.members.front(), graph_.nodes[t.position], writer);
      }
    }
    for (const ir::Output& out : result_.copied_back) {
      const ir::Node& writer = graph_.nodes[made_by_[graph_.baseOf(out.value)]];
      requireAlone(result_.buffers[bufferOfExternal(out.target)], writer, [&](const Task& task) {
        return precedes(task, taskOf(writer)) && (sequential_ || followEachOther(task, taskOf(writer)));
      });
    }
  }

  template <class Allows>
  void requireAlone(const Buffer& buffer, const ir::Node& writer, const Allows& allows) const {
    const Task task = taskOf(writer);
    if (task.direction == Direction::kUpdate) return;
    for (const Touch& t : buffer.touches) {
      if (t.task == task || isUpdate(t) || allows(t.task)) continue;
      reject(buffer.members.front(), t.position >= 0 && t.position != kTaskEnd ? graph_.nodes[t.position] : writer,
             writer);
    }
  }

  [[noreturn]] void reject(ValueId external, const ir::Node& reader, const ir::Node& writer) const {
    throwUser(
        ErrorCode::E0403,
        {.what = cat(describe(graph_, external), " is updated in every micro-batch while another task reads it"),
         .at = describe(reader),
         .found = cat("updated in stage ", writer.stage, " by ", describe(writer), ", read in stage ", reader.stage),
         .expected = "one stage reads and updates it, in its forward, or the stage ends each micro-batch before the "
                     "next begins",
         .remedy = "put all uses of this buffer into one block; if backward writes it, use ShardedExecution"});
  }

  const ir::Graph& graph_;
  bool sequential_;                           // two micro-batches are never in work at once
  bool sums_of_one_;                          // gradients are not added up
  std::vector<std::vector<Touch>> touches_;   // by base value
  std::vector<int32_t> made_by_;              // position of the node that makes each base value; -1 for inputs
  std::vector<int32_t> input_of_;             // by value
  std::vector<ValueId> value_of_;             // the input of each external, or kNone
  std::vector<bool> updated_in_place_;        // by base value
  std::vector<bool> in_order_;                // by stage: it ends a micro-batch before it begins the next
  std::unordered_map<int32_t, Spans> spans_;  // by buffer, of those that are asked for
  Liveness result_;
};

}  // namespace

bool isTransfer(const ir::Node& node) { return ownOp(node.op) == OwnOp::kTransfer; }

bool isReceive(const ir::Node& node) { return isTransfer(node) && node.writes.empty(); }

Liveness analyseLiveness(const ir::Graph& graph, const PlanOptions& options, const schedule::Schedule& schedule) {
  Liveness liveness = Analysis(graph, options, schedule).run();
  // A buffer holds its members and all their views.
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const int32_t index = liveness.buffer_of[graph.values[v].base];
    if (index < 0) continue;
    const ir::Value& value = graph.values[v];
    int64_t& bytes = liveness.buffers[index].bytes;
    bytes = std::max(bytes, value.offset * elementBytes(value.type.dtype) + value.type.extentBytes());
  }
  for (auto& buffer : liveness.buffers)
    buffer.bytes = (buffer.bytes + options.alignment - 1) / options.alignment * options.alignment;
  return liveness;
}

}  // namespace abele::plan
