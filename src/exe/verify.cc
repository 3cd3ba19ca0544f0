#include "base/cat.h"
#include "exe/executable.h"

namespace abele::exe {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 56;  // above, sums of offsets could overflow

class Verifier {
 public:
  explicit Verifier(const Executable& exe) : exe_(exe) {}

  std::vector<std::string> run() {
    require(exe_.device_iterations >= 1 && exe_.accumulation >= 1 && exe_.micro_batches >= 1 &&
                exe_.micro_batches / exe_.accumulation == exe_.device_iterations &&
                exe_.micro_batches % exe_.accumulation == 0,
            "micro_batches is not device_iterations * accumulation");
    checkReplicas();
    for (size_t g = 0; g < exe_.groups.size(); ++g) checkGroup(exe_.groups[g], cat("group ", g));
    for (size_t s = 0; s < exe_.slots.size(); ++s) checkSlot(exe_.slots[s], cat("slot ", s));
    for (size_t s = 0; s < exe_.segments.size(); ++s)
      for (const Instruction& i : exe_.segments[s].instructions) checkInstruction(i, cat("segment ", s, " ", i.op));
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (const Action& a : exe_.workers[w].actions) checkAction(a, cat("worker ", w));
    for (const External& e : exe_.externals) {
      checkSlotId(e.slot, cat("external ", e.name));
      require(e.replica_slots.empty() || size(e.replica_slots) == exe_.replicas, "external ", e.name, ": ",
              e.replica_slots.size(), " slots for ", exe_.replicas, " replicas");
      for (int32_t slot : e.replica_slots) checkSlotId(slot, cat("external ", e.name));
      require(e.owner >= -1 && e.owner < size(exe_.externals), "external ", e.name, ": owner ", e.owner);
    }
    for (int32_t slot : exe_.input_slots) checkBound(slot, GroupKind::kInput, "input");
    for (int32_t slot : exe_.output_slots) checkBound(slot, GroupKind::kOutput, "output");
    return std::move(findings_);
  }

 private:
  template <class... Parts>
  bool require(bool condition, const Parts&... parts) {
    if (!condition) findings_.push_back(cat(parts...));
    return condition;
  }
  template <class T>
  static int64_t size(const std::vector<T>& v) {
    return static_cast<int64_t>(v.size());
  }

  void checkReplicas() {
    const int64_t n = exe_.replicas;
    if (!require(n >= 1, n, " replicas")) return;
    require(exe_.processes >= 1, exe_.processes, " processes");
    require(size(exe_.input_slots) % n == 0 && size(exe_.output_slots) % n == 0,
            "inputs or outputs do not divide by the replicas");
    require(exe_.input_part.empty() ? n == 1 : size(exe_.input_part) == n, exe_.input_part.size(), " input parts for ",
            n, " replicas");
    for (int32_t part : exe_.input_part) require(part >= 0 && part < n, "input part ", part);
    for (const Segment& s : exe_.segments)
      require(s.replica >= 0 && s.replica < n, "segment ", s.name, ": replica ", s.replica);
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      require(exe_.workers[w].replica >= 0 && exe_.workers[w].replica < n, "worker ", w, ": replica ",
              exe_.workers[w].replica);
  }

  void checkSlotId(int64_t slot, const std::string& where) {
    require(slot >= -1 && slot < size(exe_.slots), where, ": slot ", slot);
  }

  void checkBound(int32_t slot, GroupKind kind, const char* what) {
    checkSlotId(slot, what);
    if (slot < 0 || slot >= size(exe_.slots)) return;
    const int32_t group = exe_.slots[slot].group;
    require(group >= 0 && group < size(exe_.groups) && exe_.groups[group].kind == kind, what, " slot ", slot,
            " is in a group of another kind");
  }

  void checkGroup(const Group& g, const std::string& where) {
    require(g.worker >= -1 && g.worker < size(exe_.workers), where, ": worker ", g.worker);
    require(g.frames >= 1, where, ": ", g.frames, " frames");
    require(g.frame_bytes >= 0 && g.frame_bytes < kMaxBytes / (g.frames > 0 ? g.frames : 1), where, ": ", g.frame_bytes,
            " bytes");
    require(!g.off_chip || g.kind == GroupKind::kPersistent || g.kind == GroupKind::kStash, where,
            ": off-chip, and neither persistent nor stash");
  }

  // Bytes that the elements span, or -1 when the type is not a sane one.
  static int64_t spanBytes(const Type& type) {
    if (type.sizes.size() != type.strides.size()) return -1;
    bool empty = false;
    for (int64_t n : type.sizes) {
      if (n < 0 || n > kMaxBytes) return -1;
      empty |= n == 0;
    }
    int64_t elements = 1;
    for (size_t d = 0; d < type.sizes.size(); ++d) {
      const int64_t n = type.sizes[d], stride = type.strides[d];
      if (stride < 0 || stride > kMaxBytes) return -1;
      int64_t step = 0;
      if (n > 1 && (__builtin_mul_overflow(n - 1, stride, &step) || step > kMaxBytes)) return -1;
      elements += step;
      if (elements > kMaxBytes) return -1;
    }
    return empty ? 0 : elements * elementBytes(type.dtype);
  }

  void checkSlot(const Slot& slot, const std::string& where) {
    if (!require(slot.group >= 0 && slot.group < size(exe_.groups), where, ": group ", slot.group)) return;
    const int64_t span = spanBytes(slot.type);
    if (!require(span >= 0 && slot.type.defined(), where, ": impossible type")) return;
    require(slot.offset_bytes >= 0 && slot.offset_bytes < kMaxBytes, where, ": offset ", slot.offset_bytes);
    const Group& g = exe_.groups[slot.group];
    const bool has_bytes = g.kind != GroupKind::kInput && g.kind != GroupKind::kOutput;
    if (has_bytes)
      require(slot.offset_bytes <= g.frame_bytes - span, where, ": ends behind its group of ", g.frame_bytes, " bytes");
  }

  void checkInstruction(const Instruction& i, const std::string& where) {
    for (const Arg& a : i.args) {
      if (a.kind == Arg::Kind::kId) checkSlotId(a.i, where);
      if (a.kind == Arg::Kind::kIdList || a.kind == Arg::Kind::kOptionalIdList)
        for (int64_t id : a.ints) checkSlotId(id, where);
    }
    for (const auto& group : i.results)
      for (int32_t slot : group) checkSlotId(slot, where);
    for (int32_t slot : i.writes) require(slot >= 0 && slot < size(exe_.slots), where, ": writes slot ", slot);
    require(i.source >= -1 && i.source < size(exe_.sources), where, ": source ", i.source);
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

  const Executable& exe_;
  std::vector<std::string> findings_;
};

}  // namespace

std::vector<std::string> verify(const Executable& executable) { return Verifier(executable).run(); }

}  // namespace abele::exe
