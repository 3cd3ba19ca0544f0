// Checks tables and instructions. verify_actions.cc checks the order of actions, and verify_own.cc the arguments of our
// own instructions.
#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/instructions.h"
#include "base/own_generator.h"
#include "exe/verify_parts.h"

namespace abele::exe {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 46;     // half of what a process can address
constexpr int64_t kMaxElements = int64_t{1} << 46;  // in an expanded tensor, which has fewer bytes
constexpr int64_t kMaxDraws = int64_t{1} << 36;     // in a step, which then takes minutes
constexpr int64_t kMaxProcesses = int64_t{1} << 20;
constexpr size_t kMaxDimensions = 64;  // as in ATen

class Verifier : Finder {
 public:
  Verifier(const Executable& exe, std::vector<std::string>& findings) : Finder(findings), exe_(exe) {}

  void run() {
    checkNumbers();
    for (size_t g = 0; g < exe_.groups.size(); ++g) checkGroup(exe_.groups[g], cat("group ", g));
    for (size_t s = 0; s < exe_.slots.size(); ++s) checkSlot(exe_.slots[s], cat("slot ", s));
    for (size_t s = 0; s < exe_.segments.size(); ++s) {
      checkSegment(exe_.segments[s]);
      for (const Instruction& i : exe_.segments[s].instructions) checkInstruction(i, cat("segment ", s, " ", i.op));
    }
    for (size_t w = 0; w < exe_.workers.size(); ++w) {
      const WorkerProgram& worker = exe_.workers[w];
      const bool is_link =
          worker.from != worker.space && worker.to != worker.space && (worker.from < 0 || worker.to < 0);
      require(worker.space >= 0 && worker.from >= -1 && worker.to >= -1 &&
                  (is_link || (addsUp(worker) && worker.from == worker.space)),
              "worker ", w, ": of space ", worker.space, ", from ", worker.from, " to ", worker.to);
      require(worker.process >= 0 && worker.process < exe_.stage_processes, "worker ", w, ": process ", worker.process);
      for (const Action& a : worker.actions) checkAction(a, cat("worker ", w));
    }
    for (size_t e = 0; e < exe_.externals.size(); ++e) checkExternal(e);
    for (int32_t slot : exe_.input_slots) checkBound(slot, GroupKind::kInput, "input");
    for (int32_t slot : exe_.output_slots) checkBound(slot, GroupKind::kOutput, "output");
    // The checks below look things up by ids, so they need good ids.
    if (!findings_.empty()) return;
    checkReplicasAlike();
    checkInputs();
    checkExternalsApart();
    checkOwnInstructions(exe_, findings_);
    if (findings_.empty()) checkActions(exe_, findings_);
  }

 private:
  template <class T>
  static int64_t size(const std::vector<T>& v) {
    return static_cast<int64_t>(v.size());
  }

  void checkNumbers() {
    require(exe_.device_iterations >= 1 && exe_.accumulation >= 1 && exe_.micro_batches >= 1 &&
                exe_.micro_batches <= INT32_MAX && exe_.micro_batches / exe_.accumulation == exe_.device_iterations &&
                exe_.micro_batches % exe_.accumulation == 0,
            "micro_batches is not device_iterations * accumulation");
    const int64_t n = exe_.replicas, workers = size(exe_.workers) - std::ranges::count_if(exe_.workers, addsUp);
    if (!require(n >= 1 && n <= std::max<int64_t>(workers, 1) && workers % n == 0, n, " replicas of ", workers,
                 " workers"))
      return;
    require(exe_.processes >= 1 && exe_.processes <= kMaxProcesses, exe_.processes, " processes");
    require(exe_.stage_processes >= 1 && exe_.stage_processes <= kMaxProcesses, exe_.stage_processes,
            " processes for the stages of a replica");
    const Normals& normals = exe_.normals;
    require(exe_.random_draws >= 0 && exe_.random_draws <= kMaxDraws, exe_.random_draws, " random draws");
    if (!require(normals.count >= 0 && normals.count <= kMaxDraws && normals.before == 0 && normals.spare >= 0 &&
                     normals.spare <= exe_.random_draws,
                 normals.count, " normal numbers, the spare of draw ", normals.spare))
      return;
    int64_t draws = 0;
    const bool overflows =
        __builtin_mul_overflow(std::max(exe_.random_draws, normals.count), exe_.micro_batches, &draws) ||
        __builtin_mul_overflow(draws, n, &draws) || __builtin_mul_overflow(draws, exe_.processes, &draws);
    require(!overflows && draws <= kMaxDraws, "more random draws in a step than ", kMaxDraws);
    require(size(exe_.input_slots) % n == 0 && size(exe_.output_slots) % n == 0,
            "inputs or outputs do not divide by the replicas");
    require(exe_.input_part.empty() ? n == 1 : size(exe_.input_part) == n, exe_.input_part.size(), " input parts for ",
            n, " replicas");
    for (int32_t part : exe_.input_part) require(part >= 0 && part < n, "input part ", part);
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      require(exe_.workers[w].replica >= 0 && exe_.workers[w].replica < n, "worker ", w, ": replica ",
              exe_.workers[w].replica);
  }

  void checkSegment(const Segment& s) {
    require(s.replica >= 0 && s.replica < exe_.replicas, "segment ", s.name, ": replica ", s.replica);
    require(s.stage >= 0, "segment ", s.name, ": stage ", s.stage);
  }

  bool checkSlotId(int64_t slot, const std::string& where) {
    return require(slot >= -1 && slot < size(exe_.slots), where, ": slot ", slot);
  }
  // The group of a slot that is known to exist.
  const Group* groupOf(int64_t slot) const {
    if (slot < 0 || slot >= size(exe_.slots)) return nullptr;
    const int32_t group = exe_.slots[slot].group;
    return group >= 0 && group < size(exe_.groups) ? &exe_.groups[group] : nullptr;
  }

  void checkBound(int32_t slot, GroupKind kind, const char* what) {
    if (!checkSlotId(slot, what) || slot < 0) return;
    const Group* group = groupOf(slot);
    require(group && group->kind == kind, what, " slot ", slot, " is in a group of another kind");
    require(exe_.slots[slot].offset_bytes == 0, what, " slot ", slot, " has an offset");
  }

  void checkGroup(const Group& g, const std::string& where) {
    const bool is_bound = g.kind == GroupKind::kInput || g.kind == GroupKind::kOutput;
    require(g.worker >= -1 && g.worker < size(exe_.workers), where, ": worker ", g.worker);
    require(g.kind != GroupKind::kTransient || g.worker >= 0, where, ": transient, but without a worker");
    if (is_bound)
      require(g.frames == exe_.micro_batches, where, ": ", g.frames, " frames");
    else
      require(g.frames >= 1 && (g.frames == 1 || (g.kind != GroupKind::kPersistent && g.frames <= exe_.micro_batches)),
              where, ": ", g.frames, " frames");
    require(g.frame_bytes >= 0 && g.frame_bytes < kMaxBytes / (g.frames > 0 ? g.frames : 1), where, ": ", g.frame_bytes,
            " bytes");
    require(!is_bound || g.frame_bytes == 0, where, ": bytes of its own");
    require(!g.off_chip || g.kind == GroupKind::kPersistent || g.kind == GroupKind::kStash, where,
            ": off-chip, but neither persistent nor stash");
  }

  // Bytes that the elements span, or -1 for an impossible type.
  static int64_t spanBytes(const Type& type) {
    if (type.sizes.size() != type.strides.size() || type.sizes.size() > kMaxDimensions) return -1;
    bool empty = false;
    int64_t count = 1;
    for (int64_t n : type.sizes) {
      if (n < 0 || n > kMaxElements) return -1;
      empty |= n == 0;
      if (__builtin_mul_overflow(count, std::max<int64_t>(n, 1), &count) || count > kMaxElements) return -1;
    }
    int64_t elements = 1;
    for (size_t d = 0; d < type.sizes.size(); ++d) {
      const int64_t n = type.sizes[d], stride = type.strides[d];
      if (stride < 0 || stride > kMaxElements) return -1;
      int64_t step = 0;
      if (n > 1 && (__builtin_mul_overflow(n - 1, stride, &step) || step > kMaxElements)) return -1;
      elements += step;
      if (elements > kMaxElements) return -1;
    }
    return empty ? 0 : elements * elementBytes(type.dtype);
  }

  void checkSlot(const Slot& slot, const std::string& where) {
    if (!require(slot.group >= 0 && slot.group < size(exe_.groups), where, ": group ", slot.group)) return;
    const int64_t span = spanBytes(slot.type);
    if (!require(span >= 0 && slot.type.defined(), where, ": impossible type")) return;
    require(slot.offset_bytes >= 0 && slot.offset_bytes < kMaxBytes &&
                slot.offset_bytes % elementBytes(slot.type.dtype) == 0,
            where, ": offset ", slot.offset_bytes);
    const Group& g = exe_.groups[slot.group];
    const bool has_bytes = g.kind != GroupKind::kInput && g.kind != GroupKind::kOutput;
    if (has_bytes)
      require(slot.offset_bytes <= g.frame_bytes - span, where, ": ends after its group of ", g.frame_bytes, " bytes");
  }

  void checkRead(int64_t slot, bool is_emitted, const std::string& where) {
    if (!checkSlotId(slot, where) || slot < 0) return;
    const Group* group = groupOf(slot);
    // A result may be bound to no tensor, so nothing may read its slot.
    require(!group || group->kind != GroupKind::kOutput || is_emitted, where, ": uses the result in slot ", slot);
  }

  void checkWritten(int64_t slot, const Instruction& i, const std::string& where) {
    const Group* group = groupOf(slot);
    require(!group || group->kind != GroupKind::kInput, where, ": writes the input in slot ", slot);
    require(!group || group->kind != GroupKind::kOutput || ownOp(i.op) == OwnOp::kEmit, where,
            ": writes the result in slot ", slot);
  }

  void checkArgument(const Arg& a, const Instruction& i, const std::string& where) {
    using Kind = Arg::Kind;
    if (a.kind == Kind::kId) checkRead(a.i, ownOp(i.op) == OwnOp::kEmit && &a == &i.args.front(), where);
    if (a.kind == Kind::kIdList || a.kind == Kind::kOptionalIdList)
      for (int64_t id : a.ints) checkRead(id, /*is_emitted=*/false, where);
    const Kind n = a.number_kind;
    require(a.kind != Kind::kNumber || n == Kind::kBool || n == Kind::kInt || n == Kind::kDouble || n == Kind::kComplex,
            where, ": a number without a kind");
  }

  void checkInstruction(const Instruction& i, const std::string& where) {
    for (const Arg& a : i.args) checkArgument(a, i, where);
    for (const auto& group : i.results)
      for (int32_t slot : group)
        if (checkSlotId(slot, where)) checkWritten(slot, i, where);
    const std::vector<int64_t> arguments = i.writes.empty() ? std::vector<int64_t>() : argumentsOf(i);
    for (int32_t slot : i.writes) {
      require(slot >= 0 && slot < size(exe_.slots) && std::ranges::binary_search(arguments, slot), where,
              ": writes slot ", slot);
      checkWritten(slot, i, where);
    }
    require(i.source >= -1 && i.source < size(exe_.sources), where, ": source ", i.source);
    const auto isCount = [](int64_t number) { return number >= 0 && number <= kMaxDraws; };
    if (ownGenerator(i.args) > 0) {
      require(
          isCount(i.random_draws) && isCount(i.random_offset) && isCount(i.normals.count) && isCount(i.normals.before),
          where, ": draws from a generator of the user's program, but has no place in its stream");
      return;
    }
    const Normals& own = i.normals;
    require(isCount(own.count) && isCount(own.before), where, ": ", own.count, " normal numbers after ", own.before);
    const bool is_known = own.before > 0 ? own.spare >= 0 && own.spare <= i.random_offset
                                         : own.spare <= 0 && own.spare >= -exe_.random_draws;
    require(own.count == 0 ? own.spare == 0 : is_known && i.random_draws >= 0, where, ": a spare of draw ", own.spare);
    require(i.random_draws >= 0 || !i.isRandom(), where, ": draws random numbers, but has no place in their stream");
    if (i.random_draws < 0) return;
    // A program may put the stream back. Then it may draw after the place where the next micro-batch begins.
    require(isCount(i.random_draws) && isCount(i.random_offset), where, ": ", i.random_draws, " random draws from ",
            i.random_offset);
  }

  // The slots in ascending order.
  static std::vector<int64_t> argumentsOf(const Instruction& i) {
    std::vector<int64_t> slots;
    for (const Arg& a : i.args) forEachId(a, [&](int64_t slot) { slots.push_back(slot); });
    std::ranges::sort(slots);
    return slots;
  }

  void checkAction(const Action& a, const std::string& where) {
    require(a.segment >= 0 && a.segment < size(exe_.segments), where, ": segment ", a.segment);
    require(a.micro_batch >= 0 && a.micro_batch < exe_.micro_batches, where, ": micro-batch ", a.micro_batch);
    for (const Wait& wait : a.waits)
      require(wait.segment >= 0 && wait.segment < size(exe_.segments), where, ": waits for segment ", wait.segment);
    for (const std::vector<FrameUse>* uses : {&a.fetches, &a.releases})
      for (const FrameUse& use : *uses) {
        const bool known = use.group >= 0 && use.group < size(exe_.groups) && exe_.groups[use.group].off_chip;
        require(known && use.frame >= 0 && use.frame < exe_.groups[use.group].frames, where,
                ": fetches or releases frame ", use.frame, " of group ", use.group);
      }
  }

  void checkExternal(size_t index) {
    const External& e = exe_.externals[index];
    const std::string where = cat("external ", e.name);
    require(e.replica_slots.empty() || (size(e.replica_slots) == exe_.replicas && e.slot >= 0), where, ": ",
            e.replica_slots.size(), " slots for ", exe_.replicas, " replicas");
    // copy: whose slot it is; null for one of the external's own
    const auto check = [&](int32_t slot, const ExternalCopy* copy) {
      if (!checkSlotId(slot, where) || slot < 0) return;
      const Group* group = groupOf(slot);
      require(group && group->kind == GroupKind::kPersistent, where, ": slot ", slot, " is not persistent");
      if (e.slot < 0 || e.slot >= size(exe_.slots)) return;
      const Type &type = exe_.slots[slot].type, &whole = exe_.slots[e.slot].type;
      require(copy && copy->dim >= 0 ? isRangeOf(type, whole, copy->dim, copy->begin) : type == whole, where, ": slot ",
              slot, " has another type");
    };
    check(e.slot, nullptr);
    for (int32_t slot : e.replica_slots) {
      require(slot >= 0, where, ": slot ", slot);
      check(slot, nullptr);
    }
    for (const ExternalCopy& copy : e.copies) {
      require(e.slot >= 0 && size(copy.slots) == exe_.replicas, where, ": a copy with ", copy.slots.size(),
              " slots for ", exe_.replicas, " replicas");
      for (int32_t slot : copy.slots) {
        require(slot >= 0, where, ": slot ", slot);
        check(slot, &copy);
      }
    }
    require(e.owner >= -1 && e.owner < size(exe_.externals) &&
                (e.owner < 0 || exe_.externals[e.owner].kind == ExternalKind::kParameter),
            where, ": owner ", e.owner);
  }

  // --- checks of several tables at once ------------------------------------------------------------------------------
  void checkReplicasAlike() {
    const auto check = [&](const std::vector<int32_t>& slots, int64_t count, const char* what) {
      for (int64_t i = count; i < size(slots); ++i) {
        const int32_t own = slots[i], first = slots[i % count];
        require((own < 0) == (first < 0) && (own < 0 || exe_.slots[own].type == exe_.slots[first].type), what, " ", i,
                " differs from that of the first replica");
      }
    };
    check(exe_.input_slots, exe_.numInputs(), "input");
    check(exe_.output_slots, exe_.numOutputs(), "output");
    std::vector<int32_t> outputs = exe_.output_slots;
    std::ranges::sort(outputs);
    for (int32_t slot = 0; slot < size(exe_.slots); ++slot)
      require(
          exe_.groups[exe_.slots[slot].group].kind != GroupKind::kOutput || std::ranges::binary_search(outputs, slot),
          "slot ", slot, " belongs to no result");
  }

  // Every slot of an input is inside an argument, and an argument has room for exactly the rows of all micro-batches.
  void checkInputs() {
    std::map<int32_t, std::vector<const Slot*>> arguments;  // by group
    const int64_t parts = exe_.micro_batches * exe_.inputParts();
    for (int32_t slot : exe_.input_slots) {
      if (slot < 0) continue;
      const Slot& whole = exe_.slots[slot];
      arguments[whole.group].push_back(&whole);
      require(whole.type.extent() <= kMaxElements / parts && whole.type.extent() / parts <= whole.type.numel(),
              "input slot ", slot, ": a type with gaps");
    }
    for (size_t s = 0; s < exe_.slots.size(); ++s) {
      const Slot& slot = exe_.slots[s];
      if (exe_.groups[slot.group].kind != GroupKind::kInput) continue;
      const auto& wholes = arguments[slot.group];
      require(std::ranges::any_of(wholes,
                                  [&](const Slot* whole) {
                                    return slot.offset_bytes >= whole->offset_bytes && endOf(slot) <= endOf(*whole);
                                  }),
              "slot ", s, " belongs to no argument");
    }
  }

  static int64_t endOf(const Slot& slot) { return slot.offset_bytes + slot.type.extentBytes(); }

  // No two externals share a byte.
  void checkExternalsApart() {
    struct Range {
      int64_t begin, end;
      size_t external;
      const ExternalCopy* copy;  // null: the external's own memory
    };
    std::map<int32_t, std::vector<Range>> ranges;  // by group
    for (size_t e = 0; e < exe_.externals.size(); ++e) {
      const External& external = exe_.externals[e];
      if (external.slot < 0) continue;
      const auto note = [&](int32_t id, const ExternalCopy* copy) {
        const Slot& slot = exe_.slots[id];
        if (slot.type.extentBytes() > 0) ranges[slot.group].push_back({slot.offset_bytes, endOf(slot), e, copy});
      };
      for (int64_t r = 0; r < (external.replica_slots.empty() ? 1 : exe_.replicas); ++r)
        note(external.slotOf(static_cast<int32_t>(r)), nullptr);
      for (const ExternalCopy& copy : external.copies)
        for (int32_t id : copy.slots) note(id, &copy);
    }
    for (auto& [group, list] : ranges) {
      std::ranges::sort(list, [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (size_t i = 1; i < list.size(); ++i)
        require(list[i].begin >= list[i - 1].end ||
                    (list[i].external == list[i - 1].external && list[i].copy == list[i - 1].copy),
                "externals ", exe_.externals[list[i - 1].external].name, " and ", exe_.externals[list[i].external].name,
                " share memory");
    }
  }

  const Executable& exe_;
};

}  // namespace

std::vector<std::string> verify(const Executable& executable) {
  std::vector<std::string> findings;
  Verifier(executable, findings).run();
  return findings;
}

}  // namespace abele::exe
