#include "exe/build/build.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/instructions.h"
#include "exe/build/buckets.h"
#include "exe/build/deal.h"
#include "exe/build/dependencies.h"
#include "exe/build/replicate.h"
#include "ir/task.h"

namespace abele::exe {
namespace {

/// Throws E0403 if a forward writes a parameter that several replicas share.
void checkSharedParameters(const ir::Graph& graph, const Replication& rules) {
  std::vector<int32_t> parameter_of(graph.values.size(), ir::kNone);  // by base value: the external that it holds
  for (const ir::Input& in : graph.inputs)
    if (in.kind == ir::InputKind::kParameter) parameter_of[in.value] = in.external;
  for (const ir::Node& node : graph.nodes)
    for (const ir::Write& w : node.writes) {
      const int32_t e = parameter_of[graph.baseOf(w.after)] = parameter_of[graph.baseOf(w.before)];
      if (e < 0 || node.direction == ir::Direction::kUpdate) continue;
      const std::string& name = graph.externals[e].name;
      const bool is_shared = std::ranges::none_of(rules.parameters, [&](const auto& groups) {
        return groups.parameter == name &&
               std::set(groups.first_of.begin(), groups.first_of.end()).size() == groups.first_of.size();
      });
      ABELE_REQUIRE(!is_shared, E0403,
                    {.what = cat("forward writes parameter ", name, ", which replicas share"),
                     .at = cat(node.op, node.source.empty() ? "" : cat(" (", node.source, ")")),
                     .found = cat(rules.replicas * rules.processes, " replicas"),
                     .expected = "parameters that replicas share and only read",
                     .remedy = "use one replica, or write into a buffer"});
    }
}

using ir::ValueId;
using plan::Home;
using plan::Placement;

class Builder {
 public:
  Builder(const ir::Graph& graph, const plan::Plan& plan, const Replication& replication, Origins* origins)
      : graph_(graph), plan_(plan), replication_(replication), origins_(origins) {}

  Executable run() {
    exe_.training = graph_.training;
    exe_.device_iterations = plan_.options.device_iterations;
    exe_.accumulation = plan_.options.accumulation;
    exe_.micro_batches = plan_.schedule.micro_batches;
    exe_.random_draws = graph_.random_draws;
    exe_.normals = graph_.normals;
    indexInputs();
    makeGroups();
    makeSegments();
    addResultsOfInputs();
    for (const ir::Node& node : graph_.nodes)
      if (!node.is_view) addNode(node);
    for (const ir::Output& out : graph_.outputs) addCopyBack(out);
    nameExternals();
    makeWorkers();
    if (replication_.replicas * replication_.processes > 1) checkSharedParameters(graph_, replication_);
    if (replication_.processes > 1 && !origins_) splitBackward(exe_, uses_);
    dealMicroBatches(exe_, uses_, plan_.turns(), origins_);
    replicate(exe_, uses_, replication_);
    for (const WorkerProgram& worker : exe_.workers)
      exe_.stage_processes = std::max<int64_t>(exe_.stage_processes, worker.process + 1);
    addWaits(exe_, uses_, schedule::splitsBackward(plan_.options.schedule));
    exe_.fetch_ahead = plan_.options.locations.fetch_ahead;
    addFetches(exe_);
    return std::move(exe_);
  }

 private:
  using Key = std::pair<int32_t, Direction>;
  using TransferKey = std::tuple<Key, int32_t, bool>;  // task, source space of the values, whether it refreshes copies
  struct TransferSegments {
    int32_t brings = -1;
    int32_t sends = -1;  // segment of the other process that sends; -1: both spaces are in one process
  };

  void indexInputs() {
    is_input_.assign(graph_.values.size(), false);
    value_of_.assign(graph_.externals.size(), ir::kNone);
    for (const ir::Input& in : graph_.inputs) {
      is_input_[in.value] = true;
      if (in.kind != ir::InputKind::kArgument && value_of_[in.external] == ir::kNone) value_of_[in.external] = in.value;
    }
  }

  // --- groups and slots ----------------------------------------------------------------------------------------------
  int32_t addGroup(GroupKind kind, int32_t worker, int64_t frames, int64_t bytes, std::string name) {
    exe_.groups.push_back({kind, worker, static_cast<int32_t>(frames), bytes, std::move(name)});
    return static_cast<int32_t>(exe_.groups.size() - 1);
  }

  void makeGroups() {
    const int workers = static_cast<int>(plan_.device_of.size()), stages = static_cast<int>(plan_.worker_of.size());
    for (int w = 0; w < workers; ++w) {
      persistent_.push_back(
          addGroup(GroupKind::kPersistent, w, 1, plan_.persistent_bytes[w], cat("persistent/worker", w)));
      transient_.push_back(
          addGroup(GroupKind::kTransient, w, plan_.turns(), plan_.transient_bytes[w], cat("transient/worker", w)));
    }
    for (int s = 0; s < stages; ++s)
      stash_.push_back(addGroup(GroupKind::kStash, plan_.worker_of[s], plan_.frames[s], plan_.stash_bytes[s],
                                cat("stash/stage", s)));
    for (size_t r = 0; r < plan_.rings.size(); ++r) {
      const plan::TaskRing& ring = plan_.rings[r];
      const std::string task = taskName(keyOf(ring.task));
      rings_.push_back(addGroup(GroupKind::kStash, plan_.worker_of[ring.task.stage], ring.frames, ring.bytes,
                                ring.is_received ? cat("receive/", task) : cat("stash/ring", r, "/", task)));
    }
    for (const plan::OffChipGroup& g : plan_.off_chip) {
      const bool is_stash = g.use == plan::TensorUse::kActivations;
      off_chip_.push_back(addGroup(is_stash ? GroupKind::kStash : GroupKind::kPersistent, plan_.worker_of[g.stage],
                                   is_stash ? plan_.frames[g.stage] : 1, g.bytes,
                                   cat("off-chip/", plan::tensorUseName(g.use), "/stage", g.stage)));
      exe_.groups.back().off_chip = true;
    }
    size_t arguments = 0, results = 0;
    for (const ir::Input& in : graph_.inputs)
      if (in.kind == ir::InputKind::kArgument) arguments = std::max<size_t>(arguments, in.external + 1);
    for (const ir::Output& out : graph_.outputs)
      if (out.kind == ir::OutputKind::kResult) results = std::max<size_t>(results, out.target + 1);
    exe_.input_slots.assign(arguments, -1);
    exe_.output_slots.assign(results, -1);
    input_group_.assign(graph_.values.size(), -1);
    for (const ir::Input& in : graph_.inputs) {
      if (in.kind != ir::InputKind::kArgument || plan_.placement[in.value].home != Home::kInput) continue;
      input_group_[in.value] = addGroup(GroupKind::kInput, -1, exe_.micro_batches, 0, cat("input/", in.external));
      exe_.input_slots[in.external] = slotOf(in.value);
    }
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kResult || exe_.output_slots[out.target] >= 0) continue;
      const int32_t group = addGroup(GroupKind::kOutput, -1, exe_.micro_batches, 0, cat("output/", out.target));
      const Type& type = graph_.values[out.value].type;
      exe_.output_slots[out.target] =
          addSlot(group, 0, contiguousType(type.dtype, type.sizes), cat("result", out.target));
    }
  }

  int32_t groupOf(ValueId base) const {
    const Placement& p = plan_.placement[base];
    if (p.off_chip >= 0) return off_chip_[p.off_chip];
    switch (p.home) {
      case Home::kPersistent: return persistent_[plan_.worker_of[p.stage]];
      case Home::kStash: return stash_[p.stage];
      case Home::kTransient: return transient_[plan_.worker_of[p.stage]];
      case Home::kInput: return input_group_[base];
      case Home::kRing: return rings_[p.ring];
      case Home::kNone: break;
    }
    ABELE_CHECK(false, "value %", base, " is used but has no place in the plan");
    return -1;
  }

  int32_t addSlot(int32_t group, int64_t offset_bytes, Type type, std::string name) {
    exe_.slots.push_back({group, offset_bytes, std::move(type), std::move(name)});
    return static_cast<int32_t>(exe_.slots.size() - 1);
  }

  std::string nameOf(ValueId v) const { return graph_.values[v].name.empty() ? cat("%", v) : graph_.values[v].name; }

  // The slot of an argument comes before all of its views, so that it starts at the tensor's first element.
  int32_t slotOf(ValueId v) {
    if (v < 0) return -1;
    if (slot_of_.empty()) slot_of_.assign(graph_.values.size(), -1);
    int32_t& slot = slot_of_[v];
    if (slot >= 0) return slot;
    return slot = slotIn(graph_.values[v].base, v);
  }

  // The elements of a value in the memory of a base of the same type.
  int32_t slotIn(ValueId base, ValueId v) {
    const ir::Value& value = graph_.values[v];
    const int64_t offset = value.offset * elementBytes(value.type.dtype);
    return addSlot(groupOf(base), plan_.placement[base].offset_bytes + offset, value.type, nameOf(v));
  }

  // The part of `after` that the op writes.
  int32_t regionSlot(const ir::Write& w) {
    const ir::Value& after = graph_.values[w.after];
    if (w.offset == 0 && w.view == after.type) return slotOf(w.after);
    const ValueId base = graph_.baseOf(w.after);
    const int64_t start = after.offset * elementBytes(after.type.dtype) + w.offset * elementBytes(w.view.dtype);
    const Placement& place = plan_.placement[base];
    return addSlot(groupOf(base), place.offset_bytes + start, w.view, nameOf(w.after));
  }

  // --- segments and instructions -------------------------------------------------------------------------------------
  static std::string taskName(const Key& task) { return exe::taskName(task.second, task.first); }
  static Key keyOf(const ir::Task& task) { return {task.stage, static_cast<Direction>(task.direction)}; }

  void makeSegments() {
    std::set<Key> used;
    for (const auto& actions : plan_.schedule.workers)
      for (const schedule::Action& a : actions) used.insert({a.stage, static_cast<Direction>(a.direction)});
    for (const Key& key : used) {
      segment_of_[key] = static_cast<int32_t>(exe_.segments.size());
      exe_.segments.push_back({key.first, key.second, taskName(key), {}});
    }
    makeTransferSegments();
    uses_.resize(exe_.segments.size());
  }

  // Makes a segment for the values that a task gets from one other space, and one that refreshes a stage's copies of
  // externals after the updates. If the space is in another process, one more segment sends the values there.
  void makeTransferSegments() {
    for (const ir::Node& node : graph_.nodes)
      if (ownOp(node.op) == OwnOp::kTransfer) transfers_[transferKey(node)] = {};
    for (auto& [key, segments] : transfers_) {
      const auto& [task, space, refreshes] = key;
      const std::string what = cat(refreshes ? cat("refresh/", task.first) : taskName(task), "/space", space);
      segments.brings = addSegment(task, cat(refreshes ? "" : "in/", what));
      const int32_t here = processOf(task.first), there = processOfSpace(space);
      if (here == there) continue;
      segments.sends = addSegment(task, cat("out/", what));
      const auto link = static_cast<int64_t>(
          link_of_.try_emplace({plan_.worker_of[task.first], space}, link_of_.size()).first->second);
      addMessage(segments.brings, OwnOp::kReceive, there, link);
      addMessage(segments.sends, OwnOp::kSend, here, link);
    }
  }

  int32_t addSegment(const Key& task, std::string name) {
    exe_.segments.push_back({task.first, task.second, std::move(name), {}});
    return static_cast<int32_t>(exe_.segments.size() - 1);
  }
  void addMessage(int32_t segment, OwnOp op, int32_t process, int64_t link) {
    exe_.segments[segment].instructions.push_back(
        {.op = ownOpName(op), .args = {Arg::idList({}), Arg::integer(process), Arg::integer(link)}});
  }

  int32_t processOfDevice(int device) const {
    return replication_.devices_per_process > 0 ? static_cast<int32_t>(device / replication_.devices_per_process) : 0;
  }
  int32_t processOf(int32_t stage) const { return processOfDevice(graph_.stages[stage].device); }
  int32_t deviceOfSpace(int32_t space) const {
    const auto stage = std::ranges::find_if(graph_.stages, [&](const ir::Stage& s) { return s.space == space; });
    return stage->device;
  }
  int32_t processOfSpace(int32_t space) const { return processOfDevice(deviceOfSpace(space)); }

  TransferKey transferKey(const ir::Node& node) const {
    return {keyOf(ir::taskOf(node)), spaceOfSource(node), !node.writes.empty()};
  }
  int32_t spaceOf(int32_t stage) const { return graph_.stages[stage].space; }
  int32_t spaceOfSource(const ir::Node& transfer) const {
    return spaceOf(plan_.placement[graph_.baseOf(static_cast<ValueId>(transfer.args.at(1).i))].stage);
  }

  int32_t segmentOf(const ir::Node& node) const {
    if (ownOp(node.op) == OwnOp::kTransfer) return transfers_.at(transferKey(node)).brings;
    auto it = segment_of_.find(keyOf(ir::taskOf(node)));
    ABELE_CHECK(it != segment_of_.end(), "node ", node.id, " ", node.op, " belongs to a task that is never run");
    return it->second;
  }

  void noteRead(int32_t segment, ValueId v) {
    uses_[segment].reads.push_back(memoryOf(v));
    noteMaker(segment, v);
  }
  void noteWrite(int32_t segment, ValueId v) { uses_[segment].writes.push_back(memoryOf(v)); }

  MemoryUse memoryOf(ValueId v) const {
    const Placement& p = plan_.placement[graph_.baseOf(v)];
    const Type& type = graph_.values[graph_.baseOf(v)].type;
    return {groupOf(graph_.baseOf(v)), p.offset_bytes, touch_count_, type.extentBytes()};
  }

  void noteMaker(int32_t segment, ValueId v) {
    auto it = maker_.find(graph_.baseOf(v));
    if (it != maker_.end() && it->second != segment) uses_[segment].makers.insert(it->second);
  }

  void emit(int32_t segment, const ir::Output& out) {
    Instruction instruction{.op = ownOpName(OwnOp::kEmit)};
    instruction.args = {Arg::id(exe_.output_slots[out.target]), Arg::id(slotOf(out.value))};
    instruction.writes = {exe_.output_slots[out.target]};
    noteRead(segment, out.value);
    exe_.segments[segment].instructions.push_back(std::move(instruction));
  }

  void addResultsOfInputs() {
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kResult) continue;
      const ValueId base = graph_.baseOf(out.value);
      if (is_input_[base])
        emit(segment_of_.at({0, Direction::kForward}), out);
      else
        results_of_[base].push_back(out);
    }
  }

  void copy(int32_t segment, ValueId to, ValueId from, int32_t source) {
    Instruction instruction{.op = ownOpName(OwnOp::kCopy), .source = source};
    instruction.args = {Arg::id(slotOf(to)), Arg::id(slotOf(from))};
    instruction.writes = {slotOf(to)};
    noteRead(segment, from);
    noteWrite(segment, to);
    exe_.segments[segment].instructions.push_back(std::move(instruction));
  }

  void addNode(const ir::Node& node) {
    ++touch_count_;
    const int32_t segment = segmentOf(node);
    if (ownOp(node.op) == OwnOp::kTransfer && transfers_.at(transferKey(node)).sends >= 0) return addToMessage(node);
    Instruction instruction{.op = node.op, .args = node.args};
    instruction.random_draws = node.random_draws;
    instruction.random_offset = node.random_offset;
    instruction.normals = node.normals;
    instruction.draws_vary = node.draws_vary;
    instruction.source = sourceIndex(node.source);
    forEachOperand(node, [&](ValueId v) { noteRead(segment, v); });
    std::map<ValueId, ValueId> copied;  // before -> after
    for (const ir::Write& w : node.writes) {
      const ValueId before = graph_.baseOf(w.before), after = graph_.baseOf(w.after);
      if (plan_.placement[before] != plan_.placement[after]) {
        copy(segment, after, before, instruction.source);
        if (!isOwn(node.op)) copied.emplace(before, after);
      }
      noteWrite(segment, after);
    }
    // As in eager PyTorch, views of written memory are read where it is written.
    const auto slotOfOperand = [&](ValueId v) {
      const auto found = v < 0 ? copied.end() : copied.find(graph_.baseOf(v));
      if (found == copied.end()) return slotOf(v);
      return v == found->first ? slotOf(found->second) : slotIn(found->second, v);
    };
    for (Arg& arg : instruction.args)
      forEachId(arg, [&](int64_t& id) { id = slotOfOperand(static_cast<ValueId>(id)); });
    std::vector<Origin> made;
    for (const ir::Write& w : node.writes) {
      Arg& arg = instruction.args[w.arg];
      const int32_t region = regionSlot(w);
      (w.element == ir::kNone ? arg.i : arg.ints[w.element]) = region;
      instruction.writes.push_back(region);
      made.push_back({region, w.after});
    }
    for (const auto& group : node.results) {
      auto& slots = instruction.results.emplace_back();
      for (ValueId v : group) {
        const bool kept = v >= 0 && plan_.placement[graph_.baseOf(v)].home != Home::kNone;
        slots.push_back(kept ? slotOf(v) : -1);
        if (kept) noteWrite(segment, v);
        if (kept) made.push_back({slots.back(), v});
      }
    }
    // Its first operand is a result here, as in abele::copy.
    if (ownOp(node.op) == OwnOp::kTransfer && !instruction.results.empty()) {
      instruction.args[0] = Arg::id(instruction.results[0][0]);
      instruction.writes = instruction.results[0];
      instruction.results.clear();
    }
    if (origins_) {
      if (origins_->size() <= static_cast<size_t>(segment)) origins_->resize(segment + 1);
      auto& by_instruction = (*origins_)[segment];
      by_instruction.resize(exe_.segments[segment].instructions.size() + 1);
      by_instruction.back() = std::move(made);
    }
    exe_.segments[segment].instructions.push_back(std::move(instruction));
    forEachResult(node, [&](ValueId v) { finishValue(segment, graph_.baseOf(v)); });
  }

  // Adds a value to the message that a transfer between processes sends.
  void addToMessage(const ir::Node& node) {
    const TransferSegments& segments = transfers_.at(transferKey(node));
    const auto from = static_cast<ValueId>(node.args.at(1).i);
    const ValueId to = node.writes.empty() ? node.results.at(0).at(0) : node.writes[0].after;
    noteRead(segments.sends, from);
    exe_.segments[segments.sends].instructions[0].args[0].ints.push_back(slotOf(from));
    noteWrite(segments.brings, to);
    uses_[segments.brings].makers.insert(segments.sends);
    Instruction& receive = exe_.segments[segments.brings].instructions[0];
    receive.args[0].ints.push_back(slotOf(to));
    receive.writes.push_back(slotOf(to));
    finishValue(segments.brings, graph_.baseOf(to));
  }

  // Emits a value directly after the node that makes it, because later nodes may overwrite its memory.
  void finishValue(int32_t segment, ValueId base) {
    if (!maker_.emplace(base, segment).second) return;
    for (const ir::Output& out : results_of_[base]) emit(segment, out);
  }

  int32_t sourceIndex(const std::string& source) {
    if (source.empty()) return -1;
    auto [it, is_new] = source_index_.emplace(source, static_cast<int32_t>(exe_.sources.size()));
    if (is_new) exe_.sources.push_back(source);
    return it->second;
  }

  // Copies new contents back into an external that could not be written in place.
  void addCopyBack(const ir::Output& out) {
    if (out.kind != ir::OutputKind::kUpdate) return;
    ++touch_count_;
    const ValueId base = graph_.baseOf(out.value), external = externalValue(out.target);
    if (plan_.placement[base] == plan_.placement[external]) return;
    copy(maker_.at(base), external, out.value, -1);
  }

  ValueId externalValue(int32_t external) const {
    const ValueId value = value_of_.at(external);
    ABELE_CHECK(value != ir::kNone, "external ", external, " is not an input of the graph");
    return value;
  }

  // --- tables --------------------------------------------------------------------------------------------------------
  void nameExternals() {
    for (const ir::External& e : graph_.externals)
      exe_.externals.push_back(
          {e.name, static_cast<ExternalKind>(static_cast<int>(e.kind) - 1), -1, e.owner, e.initial});
    for (const ir::Input& in : graph_.inputs)
      if (in.kind != ir::InputKind::kArgument && plan_.placement[in.value].home == Home::kPersistent) {
        External& external = exe_.externals[in.external];
        if (in.value == value_of_[in.external])
          external.slot = slotOf(in.value);
        else
          external.copies.push_back({.slots = {slotOf(in.value)}, .dim = in.dim, .begin = in.begin});
      }
  }

  void makeWorkers() {
    for (size_t w = 0; w < plan_.schedule.workers.size(); ++w) {
      WorkerProgram program{.device = plan_.device_of[w],
                            .actions = {},
                            .space = spaceOfWorker(w),
                            .process = processOfDevice(plan_.device_of[w])};
      for (const schedule::Action& a : plan_.schedule.workers[w])
        program.actions.push_back({segment_of_.at({a.stage, static_cast<Direction>(a.direction)}), a.micro_batch, {}});
      exe_.workers.push_back(std::move(program));
    }
    std::set<int32_t> sources;
    for (const auto& [key, segments] : transfers_) sources.insert(std::get<int32_t>(key));
    for (size_t w = 0; w < plan_.schedule.workers.size(); ++w)
      for (const int32_t space : sources) addLink(w, space);
  }

  int32_t spaceOfWorker(size_t worker) const {
    const auto stage = std::ranges::find(plan_.worker_of, static_cast<int>(worker));
    return stage == plan_.worker_of.end() ? 0 : spaceOf(static_cast<int32_t>(stage - plan_.worker_of.begin()));
  }

  // A link of a worker: all that its actions get from one space, in the order of these actions. A transfer can run
  // directly before its action, so it adds no wait that cannot be met. Copies are refreshed after all updates of the
  // worker. None of these updates waits for a refresh, because two workers may refresh copies of what the other one
  // updates.
  void addLink(size_t worker, int32_t from) {
    const int32_t space = spaceOfWorker(worker);
    WorkerProgram link{.device = plan_.device_of[worker],
                       .actions = {},
                       .space = space,
                       .from = from,
                       .process = processOfDevice(plan_.device_of[worker])};
    WorkerProgram sender{
        .device = deviceOfSpace(from), .actions = {}, .space = from, .to = space, .process = processOfSpace(from)};
    const auto add = [&](const schedule::Action& a, bool refreshes) {
      const auto found = transfers_.find({{a.stage, static_cast<Direction>(a.direction)}, from, refreshes});
      if (found == transfers_.end()) return;
      link.actions.push_back({found->second.brings, a.micro_batch, {}});
      if (found->second.sends >= 0) sender.actions.push_back({found->second.sends, a.micro_batch, {}});
    };
    std::vector<schedule::Action> updates;  // the updates of one group
    for (const schedule::Action& a : plan_.schedule.workers[worker]) {
      const bool is_update = a.direction == ir::Direction::kUpdate;
      if (!updates.empty() && (!is_update || a.micro_batch != updates.front().micro_batch)) {
        for (const schedule::Action& update : updates) add(update, /*refreshes=*/true);
        updates.clear();
      }
      add(a, /*refreshes=*/false);
      if (is_update) updates.push_back(a);
    }
    for (const schedule::Action& update : updates) add(update, /*refreshes=*/true);
    for (WorkerProgram* made : {&link, &sender})
      if (!made->actions.empty()) exe_.workers.push_back(std::move(*made));
  }

  const ir::Graph& graph_;
  const plan::Plan& plan_;
  const Replication& replication_;
  Origins* origins_;
  Executable exe_;
  std::vector<int32_t> persistent_, transient_;  // group by worker
  std::vector<int32_t> stash_;                   // group by stage
  std::vector<int32_t> off_chip_;                // group by index into Plan::off_chip
  std::vector<int32_t> rings_;                   // group by index into Plan::rings
  std::vector<int32_t> input_group_;             // by value
  std::vector<int32_t> slot_of_;                 // by value
  std::vector<bool> is_input_;                   // by value
  std::vector<ValueId> value_of_;                // by external: its input, or kNone
  std::map<Key, int32_t> segment_of_;
  std::map<TransferKey, TransferSegments> transfers_;
  std::map<std::pair<int32_t, int32_t>, size_t> link_of_;  // links between processes: by receiving worker, and space
  std::map<std::string, int32_t> source_index_;
  std::map<ValueId, std::vector<ir::Output>> results_of_;  // by base
  std::map<ValueId, int32_t> maker_;                       // base -> segment
  std::vector<SegmentUses> uses_;
  int64_t touch_count_ = 0;
};

static_assert(static_cast<int>(ir::InputKind::kState) - 1 == static_cast<int>(ExternalKind::kState));
static_assert(static_cast<int>(ir::Direction::kUpdate) == static_cast<int>(Direction::kUpdate));

}  // namespace

Executable build(const ir::Graph& graph, const plan::Plan& plan, const Replication& replication, Origins* origins) {
  return Builder(graph, plan, replication, origins).run();
}

}  // namespace abele::exe
