#include "exe/build/replicate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "base/instructions.h"
#include "exe/build/buckets.h"
#include "exe/build/one_replica.h"
#include "exe/build/shards.h"
#include "exe/instruction_slots.h"

namespace abele::exe {
namespace {

constexpr int64_t kAlignment = 64;   // alignment of memory in a group
constexpr int64_t kReduceOrder = 0;  // before all other uses of an update

class Replicator {
 public:
  Replicator(Executable& exe, std::vector<SegmentUses>& uses, const Replication& rules)
      : exe_(exe),
        uses_(uses),
        rules_(rules),
        num_replicas_(static_cast<int32_t>(rules.replicas)),
        num_groups_(exe.groups.size()),
        num_slots_(exe.slots.size()),
        num_segments_(exe.segments.size()),
        num_workers_(exe.workers.size()),
        places_(exe),
        messages_(exe, uses) {}

  void run() {
    exe_.replicas = num_replicas_;
    exe_.processes = rules_.processes;
    exe_.input_part = rules_.input_part;
    chooseOwners();
    shards_ = chooseShards(exe_, owner_, rules_.sharding);
    group_of_.resize(num_replicas_);
    slot_of_.resize(num_replicas_);
    segment_of_.resize(num_replicas_);
    for (int32_t r = 0; r < num_replicas_; ++r) copyGroups(r);
    for (int32_t r = 0; r < num_replicas_; ++r) copySlots(r);
    for (int32_t r = 0; r < num_replicas_; ++r) copySegments(r);
    addReductions();
    copyWorkers();
    copyTables();
    if (is_sharded_) changeFirstReplica();
  }

 private:
  // --- who owns what -------------------------------------------------------------------------------------------------
  int32_t externalAt(int32_t group, int64_t offset_bytes) const { return places_.at(group, offset_bytes).external; }
  // -1 for memory that is not persistent.
  int32_t externalOf(const MemoryUse& use) const {
    return isPersistent(use.group) ? externalAt(use.group, use.offset_bytes) : -1;
  }

  // owner_[e][r]: the replica whose copy of external e replica r uses; never larger than r.
  void chooseOwners() {
    const std::vector<bool> written = writtenOutsideUpdates();
    owner_.assign(exe_.externals.size(), std::vector<int32_t>(num_replicas_, 0));
    for (size_t e = 0; e < owner_.size(); ++e) {
      const External& external = exe_.externals[e];
      const bool grouped = external.kind == ExternalKind::kParameter || external.kind == ExternalKind::kState;
      if (grouped) {
        owner_[e] = groupsOf(external);
      } else if (external.kind == ExternalKind::kAccumulator || written[e]) {
        for (int32_t r = 0; r < num_replicas_; ++r) owner_[e][r] = r;
      }
    }
  }

  // For a parameter or one of its states: the first replica of each replica's group.
  std::vector<int32_t> groupsOf(const External& external) const {
    const External& parameter = external.owner >= 0 ? exe_.externals[external.owner] : external;
    for (const ParameterGroups& groups : rules_.parameters)
      if (groups.parameter == parameter.name) return groups.first_of;
    return std::vector<int32_t>(num_replicas_, 0);
  }

  std::vector<bool> writtenOutsideUpdates() const {
    std::vector<bool> written(exe_.externals.size(), false);
    for (size_t s = 0; s < num_segments_; ++s) {
      if (isUpdate(s)) continue;
      for (const MemoryUse& use : uses_[s].writes)
        if (const int32_t e = externalOf(use); e >= 0) written[e] = true;
    }
    return written;
  }

  bool isUpdate(size_t segment) const { return exe_.segments[segment].direction == Direction::kUpdate; }
  bool isPersistent(int32_t group) const { return exe_.groups[group].kind == GroupKind::kPersistent; }

  // --- memory --------------------------------------------------------------------------------------------------------
  void copyGroups(int32_t replica) {
    std::vector<int32_t>& map = group_of_[replica];
    for (size_t g = 0; g < num_groups_; ++g) {
      map.push_back(static_cast<int32_t>(replica == 0 ? g : exe_.groups.size()));
      const bool is_placed = isPersistent(static_cast<int32_t>(g)) && (replica > 0 || is_sharded_);
      const int64_t bytes = is_placed ? placeHeld(replica, static_cast<int32_t>(g)) : exe_.groups[g].frame_bytes;
      if (replica == 0) {
        first_bytes_.push_back(bytes);
        continue;
      }
      Group group = exe_.groups[g];
      if (group.worker >= 0) group.worker += replica * static_cast<int32_t>(num_workers_);
      group.name += cat("/replica", replica);
      group.frame_bytes = bytes;
      exe_.groups.push_back(std::move(group));
    }
  }

  // Places all that a replica holds of a persistent group. Returns its bytes.
  int64_t placeHeld(int32_t replica, int32_t group) {
    int64_t bytes = 0;
    for (const auto& [memory, place] : places_.all()) {
      if (memory.first != group) continue;
      const int32_t e = place.external;
      for (int32_t owner = 0; owner < num_replicas_; ++owner) {
        if (owner_[e][owner] != owner || shards_.holder[e][owner] != replica) continue;
        held_offset_[{place.slot, owner}] = bytes;
        const int64_t extent = exe_.slots[place.slot].type.extentBytes();
        bytes += (extent + kAlignment - 1) / kAlignment * kAlignment;
      }
    }
    return bytes;
  }

  // Maps memory of the unreplicated program to the same memory of a replica.
  MemoryUse memoryOf(int32_t replica, MemoryUse use) const {
    if (!isPersistent(use.group)) {
      use.group = group_of_[replica][use.group];
      return use;
    }
    const auto [e, slot] = places_.at(use.group, use.offset_bytes);
    const int32_t owner = owner_[e][replica];
    if (owner == 0 && !is_sharded_) return use;
    const int64_t within = use.offset_bytes - exe_.slots[slot].offset_bytes;
    return {group_of_[shards_.holder[e][owner]][use.group], held_offset_.at({slot, owner}) + within, use.order};
  }

  void copySlots(int32_t replica) {
    std::vector<int32_t>& map = slot_of_[replica];
    for (size_t s = 0; s < num_slots_; ++s) {
      const Slot& original = exe_.slots[s];
      int32_t owner = replica;
      if (isPersistent(original.group)) owner = owner_[externalAt(original.group, original.offset_bytes)][replica];
      if (owner != replica || replica == 0) {
        map.push_back(owner == 0 ? static_cast<int32_t>(s) : slot_of_[owner][s]);
        continue;
      }
      const MemoryUse place = memoryOf(replica, {original.group, original.offset_bytes, 0});
      map.push_back(static_cast<int32_t>(exe_.slots.size()));
      Slot copy = original;
      copy.group = place.group;
      copy.offset_bytes = place.offset_bytes;
      exe_.slots.push_back(std::move(copy));
    }
  }

  int32_t slotOf(int32_t replica, int64_t slot) const { return slot < 0 ? -1 : slot_of_[replica][slot]; }

  // --- segments ------------------------------------------------------------------------------------------------------
  void copySegments(int32_t replica) {
    std::vector<int32_t>& map = segment_of_[replica];
    std::vector<std::pair<size_t, std::vector<Instruction>>> originals;
    for (size_t s = 0; s < num_segments_; ++s) {
      if (replica == 0) {
        map.push_back(static_cast<int32_t>(s));
        continue;
      }
      Segment copy = exe_.segments[s];
      copy.replica = replica;
      copy.name += cat("/replica", replica);
      if (isUpdate(s)) keepOwnUpdates(replica, s, copy.instructions);
      const bool runs = !isUpdate(s) || !copy.instructions.empty();
      map.push_back(runs ? static_cast<int32_t>(exe_.segments.size()) : -1);
      if (!runs) continue;
      originals.emplace_back(s, isUpdate(s) ? copy.instructions : std::vector<Instruction>());
      for (Instruction& i : copy.instructions) moveTo(replica, i, isUpdate(s));
      exe_.segments.push_back(std::move(copy));
    }
    // Runs after all segments are known, because a segment may read what a later one makes.
    for (const auto& [s, instructions] : originals) uses_.push_back(usesOf(replica, s, instructions));
  }

  // One replica of a group updates a shared parameter. Walks from the end and keeps instructions that write something
  // that this replica updates, and instructions that make what a kept one reads.
  void keepOwnUpdates(int32_t replica, size_t segment, std::vector<Instruction>& instructions) const {
    if (messages_.has(segment))
      return messages_.keep(
          segment, [&](int32_t slot) { return baseOf(slot) < 0 || isOwnUpdate(replica, slot); }, instructions);
    std::vector<Instruction> kept;
    const bool is_link = workerOf(segment).isLink();  // it brings values that an update of the replica may read
    std::vector<int32_t> needed;
    for (auto it = instructions.rbegin(); it != instructions.rend(); ++it) {
      bool is_kept = false;
      forEachWritten(*it, [&](int32_t slot) {
        is_kept |= isOwnUpdate(replica, slot) || overlapsAny(slot, needed) || (is_link && baseOf(slot) < 0);
      });
      if (ownOp(it->op) == OwnOp::kEmit) is_kept = isOwnResult(replica, static_cast<int32_t>(it->args[1].i));
      if (!is_kept) continue;
      for (const auto& group : it->results)
        for (int32_t slot : group)
          std::erase_if(needed, [&](int32_t other) { return slot >= 0 && covers(slot, other); });
      forEachOperand(*it, [&](int32_t slot) {
        if (!isPersistent(exe_.slots[slot].group)) needed.push_back(slot);
      });
      kept.push_back(std::move(*it));
    }
    std::ranges::reverse(kept);
    instructions = std::move(kept);
  }

  // The replica that updates the external's parameter, and all that belongs to it, for the group of `replica`.
  int32_t updaterOf(int32_t e, int32_t replica) const {
    const External& external = exe_.externals[e];
    if (external.owner >= 0) return shards_.updater[external.owner][replica];
    return external.kind == ExternalKind::kAccumulator ? 0 : shards_.updater[e][replica];
  }
  // The first replica of the group of `replica`, which holds the sums of the group.
  int32_t firstOf(int32_t e, int32_t replica) const { return groupsOf(exe_.externals[e])[replica]; }

  bool isOwnUpdate(int32_t replica, int32_t slot) const {
    const int32_t e = baseOf(slot);
    return e >= 0 && updaterOf(e, replica) == replica;
  }
  // Replica 0 returns results that are not an external.
  bool isOwnResult(int32_t replica, int32_t slot) const {
    return baseOf(slot) < 0 ? replica == 0 : isOwnUpdate(replica, slot);
  }

  int64_t endOf(int32_t slot) const { return exe_.slots[slot].offset_bytes + exe_.slots[slot].type.extentBytes(); }
  bool overlapsAny(int32_t slot, const std::vector<int32_t>& others) const {
    return std::ranges::any_of(others, [&](int32_t other) { return overlap(exe_, slot, other); });
  }
  bool covers(int32_t slot, int32_t other) const {
    const Slot &outer = exe_.slots[slot], &inner = exe_.slots[other];
    return outer.group == inner.group && outer.type.isContiguous() && outer.offset_bytes <= inner.offset_bytes &&
           endOf(other) <= endOf(slot);
  }

  // An update serves the whole group, so its sums and results are those of the group's first replica.
  int32_t slotInUpdate(int32_t replica, const Instruction& i, int64_t slot) const {
    if (slot < 0) return -1;
    if (const int32_t e = baseOf(static_cast<int32_t>(slot)); e >= 0) {
      const bool is_sum = exe_.externals[e].kind == ExternalKind::kAccumulator;
      return slotOf(is_sum ? firstOf(e, replica) : replica, slot);
    }
    if (exe_.groups[exe_.slots[slot].group].kind != GroupKind::kOutput) return slotOf(replica, slot);
    const int32_t source = baseOf(static_cast<int32_t>(i.args[1].i));
    return slotOf(source < 0 ? replica : firstOf(source, replica), slot);
  }

  void moveTo(int32_t replica, Instruction& i, bool is_update) const {
    const Instruction original = i;
    const auto moved = [&](int64_t slot) {
      return is_update ? slotInUpdate(replica, original, slot) : slotOf(replica, slot);
    };
    for (Arg& arg : i.args) forEachId(arg, [&](int64_t& slot) { slot = moved(slot); });
    for (auto& group : i.results)
      for (int32_t& slot : group) slot = moved(slot);
    for (int32_t& slot : i.writes) slot = moved(slot);
    if (hasTrait(i.op, kMessage)) i.args[2].i += replica * messages_.links();
  }

  // For an update, only the memory that the kept instructions use.
  SegmentUses usesOf(int32_t replica, size_t segment, const std::vector<Instruction>& instructions) const {
    if (isUpdate(segment) && messages_.has(segment) && instructions.empty()) return {};
    std::set<int32_t> kept;
    for (const Instruction& i : instructions) {
      auto keep = [&](int32_t slot) { kept.insert(baseOf(slot)); };
      forEachOperand(i, keep);
      forEachWritten(i, keep);
    }
    auto isUsed = [&](const MemoryUse& use) {
      return !isUpdate(segment) || !isPersistent(use.group) || kept.count(externalAt(use.group, use.offset_bytes)) > 0;
    };
    auto moved = [&](const MemoryUse& use) {
      const int32_t e = externalOf(use);
      const bool is_sum = isUpdate(segment) && e >= 0 && exe_.externals[e].kind == ExternalKind::kAccumulator;
      return memoryOf(is_sum ? firstOf(e, replica) : replica, use);
    };
    SegmentUses uses;
    for (const MemoryUse& use : uses_[segment].reads)
      if (isUsed(use)) uses.reads.push_back(moved(use));
    for (const MemoryUse& use : uses_[segment].writes)
      if (isUsed(use)) uses.writes.push_back(moved(use));
    for (int32_t maker : uses_[segment].makers) {
      const bool is_of_all = maker >= static_cast<int32_t>(num_segments_);  // adds up sums over processes
      const int32_t own = is_of_all ? maker : segment_of_[replica][maker];
      if (own >= 0) uses.makers.insert(own);
    }
    return uses;
  }

  // The external that contains a slot; -1 for other memory and for empty tensors.
  int32_t baseOf(int32_t slot) const {
    const Slot& s = exe_.slots[slot];
    return isPersistent(s.group) && s.type.extentBytes() > 0 ? externalAt(s.group, s.offset_bytes) : -1;
  }

  // --- sums over replicas --------------------------------------------------------------------------------------------
  //
  // Adds up the gradient sums that updates read, each where its parameter is updated, or else where it is read first.
  void addReductions() {
    std::map<int32_t, size_t> segment_of_sum;  // by external
    for (size_t s = num_segments_; s-- > 0;) {
      if (!isUpdate(s)) continue;
      for (const MemoryUse& use : uses_[s].reads) {
        const int32_t e = externalOf(use);
        if (e < 0 || exe_.externals[e].kind != ExternalKind::kAccumulator) continue;
        // Transfers read sums too; but the updates of a sum's parameter run in the space of the sum.
        if (workerOf(s).space != exe_.workers[exe_.groups[use.group].worker].space) continue;
        auto [at, is_new] = segment_of_sum.emplace(e, s);
        if (!is_new && (updatesOwner(s, e) || !updatesOwner(at->second, e))) at->second = s;
      }
    }
    if (rules_.processes > 1) return addJointReductions(segment_of_sum);
    for (int32_t replica = 0; replica < num_replicas_; ++replica)
      for (size_t s = 0; s < num_segments_; ++s) addReduction(replica, s, segment_of_sum);
  }

  // If stages are spread over processes, the processes with the same stages add up their sums together. The replicas of
  // all processes are in one order: sums of the processes before this one come first.
  void addJointReductions(const std::map<int32_t, size_t>& segment_of_sum) {
    std::map<int32_t, std::vector<int32_t>> by_process;
    for (const auto& [e, segment] : segment_of_sum) by_process[processOfSum(e)].push_back(e);
    for (const auto& [process, sums] : by_process) {
      if (usesOffChipMemory(exe_))
        addJointReduction(process, sums);
      else
        addSumWorker(process, sums);
    }
  }

  int32_t processOfSum(int32_t e) const {
    const int32_t worker = exe_.groups[exe_.slots[exe_.externals[e].slot].group].worker;
    return worker < 0 ? 0 : exe_.workers[worker].process;
  }

  // One segment adds up all sums of a process before its first update, so that no worker fetches off-chip memory that
  // another worker holds.
  void addJointReduction(int32_t process, const std::vector<int32_t>& sums) {
    const int32_t at = firstUpdate(process);
    if (at >= 0)
      reductions_[{0, static_cast<size_t>(at)}] = addJointSegment(process, exe_.segments[at].stage, sums, {});
  }

  // One worker sends all messages, so that all processes use the same order. It adds up each bucket of sums once the
  // bucket is complete, while the other workers continue with backward. No update runs before all buckets are done.
  void addSumWorker(int32_t process, const std::vector<int32_t>& sums) {
    const auto first = std::ranges::find_if(
        exe_.workers, [&](const WorkerProgram& worker) { return worker.process == process && !worker.isLink(); });
    WorkerProgram adds{.device = first->device,
                       .actions = {},
                       .space = first->space,
                       .from = first->space,
                       .to = first->space,
                       .process = process};
    std::vector<int32_t> segments;
    for (const Bucket& bucket : bucketsOf(exe_, sums)) {
      std::set<int32_t> makers;
      for (int32_t r = 0; r < num_replicas_; ++r)
        for (const int32_t maker : bucket.makers) makers.insert(segment_of_[r][maker]);
      const int32_t stage = bucket.makers.empty() ? 0 : exe_.segments[*bucket.makers.begin()].stage;
      segments.push_back(addJointSegment(process, stage, bucket.sums, std::move(makers)));
      exe_.segments.back().name += cat("/bucket", segments.size() - 1);
    }
    for (int64_t last = exe_.accumulation - 1; last < exe_.micro_batches; last += exe_.accumulation)
      for (const int32_t segment : segments) adds.actions.push_back({segment, static_cast<int32_t>(last), {}});
    for (size_t s = 0; s < num_segments_; ++s)
      if (isUpdate(s) && workerOf(s).process == process)
        for (int32_t r = 0; r < num_replicas_; ++r)
          if (segment_of_[r][s] >= 0) uses_[segment_of_[r][s]].makers.insert(segments.begin(), segments.end());
    sum_workers_.push_back(std::move(adds));
  }

  int32_t addJointSegment(int32_t process, int32_t stage, const std::vector<int32_t>& sums, std::set<int32_t> makers) {
    Segment segment{.stage = stage,
                    .direction = Direction::kUpdate,
                    .name = process == 0 ? "reduce/processes" : cat("reduce/processes/", process)};
    SegmentUses uses{.makers = std::move(makers)};
    std::vector<int64_t> totals;
    for (const int32_t e : sums)
      for (int32_t r = 0; r < num_replicas_; ++r)
        if (firstOf(e, r) == r) totals.push_back(slotOf(r, exe_.externals[e].slot));
    const auto joint = [&](OwnOp op) {
      Instruction i{.op = ownOpName(op), .args = {Arg::idList(totals)}};
      i.writes.assign(totals.begin(), totals.end());
      return i;
    };
    segment.instructions.push_back(joint(OwnOp::kAddPrevious));
    for (const int32_t e : sums)
      for (int32_t r = 0; r < num_replicas_; ++r)
        if (firstOf(e, r) == r) {
          const Slot& slot = exe_.slots[exe_.externals[e].slot];
          uses.writes.push_back(memoryOf(r, {slot.group, slot.offset_bytes, kReduceOrder}));
          addSum(r, e, segment, uses);
        }
    segment.instructions.push_back(joint(OwnOp::kShareSum));
    exe_.segments.push_back(std::move(segment));
    uses_.push_back(std::move(uses));
    return static_cast<int32_t>(exe_.segments.size() - 1);
  }

  // The first update that runs on a process, on its first worker with an update; -1 if it runs no update.
  int32_t firstUpdate(int32_t process) const {
    for (const WorkerProgram& program : exe_.workers)
      for (const Action& action : program.actions)
        if (program.process == process && !program.isLink() && isUpdate(action.segment)) return action.segment;
    return -1;
  }

  const WorkerProgram& workerOf(size_t segment) const {
    for (const WorkerProgram& worker : exe_.workers)
      for (const Action& action : worker.actions)
        if (action.segment == static_cast<int32_t>(segment)) return worker;
    ABELE_CHECK(false, "no worker runs ", exe_.segments[segment].name);
    return exe_.workers.front();
  }

  bool updatesOwner(size_t segment, int32_t sum) const {
    const auto& writes = uses_[segment].writes;
    return std::ranges::any_of(writes, [&](const MemoryUse& use) {
      return isPersistent(use.group) && externalOf(use) == exe_.externals[sum].owner;
    });
  }

  // Adds up sums of a replica before the updates of a segment.
  void addReduction(int32_t replica, size_t segment, const std::map<int32_t, size_t>& segment_of_sum) {
    Segment sums{.stage = exe_.segments[segment].stage, .direction = Direction::kUpdate, .replica = replica};
    SegmentUses uses;
    for (const auto& [e, at] : segment_of_sum)
      if (at == segment && updaterOf(e, replica) == replica) addSum(firstOf(e, replica), e, sums, uses);
    if (sums.instructions.empty()) return;
    sums.name = cat("reduce/", sums.stage, replica == 0 ? "" : cat("/replica", replica));
    reductions_[{replica, segment}] = static_cast<int32_t>(exe_.segments.size());
    exe_.segments.push_back(std::move(sums));
    uses_.push_back(std::move(uses));
  }

  // Adds the sums of the other replicas to the sum of the group's first replica, in ascending order.
  void addSum(int32_t first, int32_t e, Segment& sums, SegmentUses& uses) const {
    const Slot& slot = exe_.slots[exe_.externals[e].slot];
    const MemoryUse memory{slot.group, slot.offset_bytes, kReduceOrder};
    for (int32_t r = first + 1; r < num_replicas_; ++r) {
      if (firstOf(e, r) != first) continue;
      Instruction add{.op = ownOpName(OwnOp::kAdd)};
      add.args = {Arg::id(slotOf(first, exe_.externals[e].slot)), Arg::id(slotOf(r, exe_.externals[e].slot))};
      add.writes = {slotOf(first, exe_.externals[e].slot)};
      sums.instructions.push_back(std::move(add));
      uses.reads.push_back(memoryOf(r, memory));
      uses.writes.push_back(memoryOf(first, memory));
    }
  }

  // --- workers and tables --------------------------------------------------------------------------------------------
  //
  // If a replica is spread over several processes, the devices of a process are consecutive.
  int32_t deviceOf(int32_t replica, int32_t device, int32_t devices) const {
    const auto here = static_cast<int32_t>(rules_.devices_per_process);
    if (here == 0) return device + replica * devices;
    return (device / here * num_replicas_ + replica) * here + device % here;
  }

  void copyWorkers() {
    int32_t devices = 0;
    for (const WorkerProgram& program : exe_.workers) devices = std::max(devices, program.device + 1);
    std::vector<WorkerProgram> workers;
    for (int32_t r = 0; r < num_replicas_; ++r)
      for (const WorkerProgram& original : exe_.workers) {
        WorkerProgram& copy = workers.emplace_back(original);
        copy.actions.clear();
        copy.device = deviceOf(r, original.device, devices);
        copy.replica = r;
        int32_t reduced = -1;  // micro-batch: the sums of its group are complete
        for (const Action& action : original.actions) {
          // All sums of a worker come before its first update, because an update may read the sums of other workers
          // (clipping).
          if (isUpdate(action.segment) && action.micro_batch != reduced) {
            addReductionActions(r, original, action.micro_batch, copy);
            reduced = action.micro_batch;
          }
          const int32_t segment = segment_of_[r][action.segment];
          if (segment >= 0) copy.actions.push_back({segment, action.micro_batch, {}});
        }
      }
    exe_.workers = std::move(workers);
    for (WorkerProgram& adds : sum_workers_) adds.device = deviceOf(0, adds.device, devices);
    std::ranges::move(sum_workers_, std::back_inserter(exe_.workers));
  }

  void addReductionActions(int32_t replica, const WorkerProgram& original, int32_t micro_batch, WorkerProgram& copy) {
    for (const Action& action : original.actions) {
      if (action.micro_batch != micro_batch || !isUpdate(action.segment)) continue;
      auto reduction = reductions_.find({replica, action.segment});
      if (reduction != reductions_.end()) copy.actions.push_back({reduction->second, micro_batch, {}});
    }
  }

  void copyTables() {
    const std::vector<int32_t> inputs = exe_.input_slots, outputs = exe_.output_slots;
    for (int32_t r = 1; r < num_replicas_; ++r) {
      for (int32_t slot : inputs) exe_.input_slots.push_back(slotOf(r, slot));
      for (int32_t slot : outputs) exe_.output_slots.push_back(slotOf(r, slot));
    }
    for (External& external : exe_.externals) {
      if (external.slot < 0) continue;
      for (ExternalCopy& copy : external.copies) {
        const int32_t first = copy.slots[0];
        copy.slots.clear();
        for (int32_t r = 0; r < num_replicas_; ++r) copy.slots.push_back(slotOf(r, first));
      }
      for (int32_t r = 0; r < num_replicas_; ++r) external.replica_slots.push_back(slotOf(r, external.slot));
      const bool all_share =
          std::ranges::all_of(external.replica_slots, [&](int32_t slot) { return slot == external.slot; });
      if (all_share) external.replica_slots.clear();
    }
  }

  // --- sharding ------------------------------------------------------------------------------------------------------
  //
  // Runs last, because all other steps read replica 0 as it was. It gives replica 0 its own share of the updates, and
  // moves shared values to the memory of their holder.
  void changeFirstReplica() {
    std::vector<SegmentUses> uses;
    for (size_t s = 0; s < num_segments_; ++s) {
      std::vector<Instruction>& instructions = exe_.segments[s].instructions;
      if (isUpdate(s)) keepOwnUpdates(0, s, instructions);
      uses.push_back(usesOf(0, s, instructions));
    }
    std::move(uses.begin(), uses.end(), uses_.begin());
    std::vector<MemoryUse> places;
    for (size_t s = 0; s < num_slots_; ++s)
      places.push_back(memoryOf(0, {exe_.slots[s].group, exe_.slots[s].offset_bytes, 0}));
    for (size_t s = 0; s < num_slots_; ++s) {
      exe_.slots[s].group = places[s].group;
      exe_.slots[s].offset_bytes = places[s].offset_bytes;
    }
    for (size_t g = 0; g < num_groups_; ++g) exe_.groups[g].frame_bytes = first_bytes_[g];
  }

  Executable& exe_;
  std::vector<SegmentUses>& uses_;
  const Replication& rules_;
  int32_t num_replicas_;
  size_t num_groups_, num_slots_, num_segments_, num_workers_;  // in one replica
  const ExternalPlaces places_;
  const Messages messages_;
  std::vector<std::vector<int32_t>> owner_;  // by external and replica
  Shards shards_;
  const bool is_sharded_ = num_replicas_ > 1 && (rules_.sharding.weights || rules_.sharding.states);
  std::vector<int64_t> first_bytes_;                                   // by group of replica 0: its bytes after
                                                                       // sharding
  std::map<std::pair<int32_t, int32_t>, int64_t> held_offset_;         // by slot and owner: offset at its holder
  std::vector<std::vector<int32_t>> group_of_, slot_of_, segment_of_;  // by replica, and by replica 0's index
  std::map<std::pair<int32_t, size_t>, int32_t> reductions_;           // by replica and update segment
  std::vector<WorkerProgram> sum_workers_;
};

}  // namespace

void replicate(Executable& executable, std::vector<SegmentUses>& uses, const Replication& rules) {
  if (rules.replicas == 1 && rules.processes == 1) return;
  ABELE_CHECK(
      rules.replicas >= 1 && rules.processes >= 1 && static_cast<int64_t>(rules.input_part.size()) == rules.replicas,
      "input parts of ", rules.input_part.size(), " replicas for ", rules.replicas);
  for (const ParameterGroups& groups : rules.parameters)
    ABELE_CHECK(static_cast<int64_t>(groups.first_of.size()) == rules.replicas, "groups of ", groups.parameter);
  Replicator(executable, uses, rules).run();
}

}  // namespace abele::exe
