#include "exe/build/lanes.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/instructions.h"
#include "exe/instruction_slots.h"
#include "plan/lanes.h"

namespace abele::exe {
namespace {

// In place of a lane, a tensor of all lanes: rows one behind the other, or a dimension of lanes ahead.
constexpr int32_t kRows = -1, kDimension = -2;

class LaneMaker {
 public:
  LaneMaker(Executable& exe, const std::vector<int64_t>& lane_bytes, bool joins_inputs)
      : exe_(exe), lane_bytes_(lane_bytes), joins_inputs_(joins_inputs), argument_(exe.groups.size(), nullptr) {
    for (const int32_t slot : exe.input_slots)
      if (slot >= 0) arguments_.emplace_back(exe.slots[slot].group, exe.slots[slot].type);
    for (const auto& [group, type] : arguments_) argument_[group] = &type;
  }

  void run(const std::vector<MessageSegments>& messages) {
    for (const MessageSegments& message : messages)
      if (exe_.segments[message.sends].direction != Direction::kUpdate) spread(message);
    for (Segment& segment : exe_.segments) {
      if (segment.direction == Direction::kUpdate) continue;
      std::vector<Instruction> all;
      for (const Instruction& instruction : segment.instructions) add(instruction, all);
      segment.instructions = std::move(all);
    }
  }

 private:
  void add(const Instruction& instruction, std::vector<Instruction>& all) {
    if (hasTrait(instruction.op, kMessage) || !varies(instruction)) {  // messages have got slots of lanes already
      all.push_back(instruction);
      return;
    }
    const int32_t way = plan::reducesRows(instruction.op, instruction.args, rankOf(instruction)) ? kDimension : kRows;
    if (canJoin(instruction, way)) {
      Instruction& joint = all.emplace_back(instruction);
      joint.joins = static_cast<int32_t>(exe_.lanes);
      moveTo(joint, way);
      if (way == kDimension) reduceBehindLanes(joint);
    }
    for (int32_t lane = 0; lane < exe_.lanes; ++lane) {
      Instruction& part = all.emplace_back(instruction);
      part.lane = lane;
      moveTo(part, lane);
    }
  }

  GroupKind kindOf(int64_t slot) const { return exe_.groups[exe_.slots[slot].group].kind; }
  // The caller's tensors have a frame for each micro-batch.
  bool isBound(int64_t slot) const { return kindOf(slot) == GroupKind::kInput || kindOf(slot) == GroupKind::kOutput; }
  bool isOfLanes(int64_t slot) const { return isBound(slot) || lane_bytes_[slot] > 0; }

  // Its operands or what it writes do. Sums take one gradient after the other.
  bool varies(const Instruction& instruction) const {
    bool found = hasTrait(instruction.op, kSums);
    const auto look = [&](int32_t slot) { found = found || isOfLanes(slot); };
    forEachOperand(instruction, look);
    forEachResult(instruction, look);
    return found;
  }

  // Of the first operand; 0: there is none.
  int64_t rankOf(const Instruction& instruction) const {
    if (instruction.args.empty() || instruction.args[0].kind != Arg::Kind::kId || instruction.args[0].i < 0) return 0;
    return static_cast<int64_t>(exe_.slots[instruction.args[0].i].type.sizes.size());
  }

  void reduceBehindLanes(Instruction& joint) const {
    const Type& type = exe_.slots[joint.args[0].i].type;  // has the dimension of lanes
    std::vector<int64_t> dims = joint.args[1].ints;
    for (int64_t& dim : dims) dim += dim < 0 ? 0 : 1;
    if (dims.empty())
      for (int64_t dim = 1; dim < static_cast<int64_t>(type.sizes.size()); ++dim) dims.push_back(dim);
    joint.args[1] = Arg::intList(std::move(dims));
  }

  bool canJoin(const Instruction& instruction, int32_t way) const {
    const OwnOp own = ownOp(instruction.op);
    const bool is_copy = own == OwnOp::kCopy || own == OwnOp::kTransfer;
    if (!is_copy && !instruction.op.starts_with("aten::")) return false;
    bool reads = false, fits = true;
    forEachOperand(instruction, [&](int32_t slot) {
      if (!isOfLanes(slot)) {
        fits = fits && !is_copy;  // that is as long as what it copies
        return;
      }
      reads = true;
      fits = fits && plan::isOfNumbers(exe_.slots[slot].type.dtype) && wholeType(slot, way).has_value();
    });
    forEachWritten(instruction,
                   [&](int32_t slot) { fits = fits && isOfLanes(slot) && wholeType(slot, way).has_value(); });
    return reads && fits;
  }

  int64_t laneBytes(int64_t slot) const {
    if (kindOf(slot) != GroupKind::kInput) return lane_bytes_[slot];
    const Type* const argument = argument_[exe_.slots[slot].group];
    return joins_inputs_ && argument && argument->isContiguous() ? argument->extentBytes() : 0;
  }

  // The tensor of all lanes, if they are one without a gap.
  std::optional<Type> wholeType(int64_t slot, int32_t way) const {
    if (kindOf(slot) == GroupKind::kOutput) return std::nullopt;
    Type type = exe_.slots[slot].type;
    const int64_t bytes = laneBytes(slot);
    if (!plan::leavesNoGap(type, bytes)) return std::nullopt;
    type.strides[0] = plan::rowStride(type);
    if (way == kRows) {
      type.sizes[0] *= exe_.lanes;
    } else {
      type.strides.insert(type.strides.begin(), bytes / elementBytes(type.dtype));
      type.sizes.insert(type.sizes.begin(), exe_.lanes);
    }
    return type;
  }

  // One message has the values of all lanes: as one value where they follow each other without a gap at both ends.
  void spread(const MessageSegments& message) {
    Instruction& send = exe_.segments[message.sends].instructions.at(0);
    Instruction& receive = exe_.segments[message.brings].instructions.at(0);
    std::vector<int64_t> sent, received;
    for (size_t i = 0; i < send.args[0].ints.size(); ++i) {
      const int64_t from = send.args[0].ints[i], to = receive.args[0].ints[i];
      const auto add = [&](int32_t lane) {
        sent.push_back(slotOf(from, lane));
        received.push_back(slotOf(to, lane));
      };
      if (!isOfLanes(from) && !isOfLanes(to))
        add(0);
      else if (wholeType(from, kRows) && wholeType(to, kRows))
        add(kRows);
      else
        for (int32_t lane = 0; lane < exe_.lanes; ++lane) add(lane);
    }
    receive.writes.assign(received.begin(), received.end());
    send.args[0].ints = std::move(sent);
    receive.args[0].ints = std::move(received);
  }

  // A slot of one lane, or of all (kRows, kDimension).
  int32_t slotOf(int64_t slot, int32_t lane) {
    if (slot < 0 || !isOfLanes(slot)) return static_cast<int32_t>(slot);
    if (lane == 0 || (lane > 0 && isBound(slot))) return static_cast<int32_t>(slot);
    const auto [found, is_new] =
        made_.try_emplace({static_cast<int32_t>(slot), lane}, static_cast<int32_t>(exe_.slots.size()));
    if (!is_new) return found->second;
    Slot made = exe_.slots[slot];
    if (lane < 0)
      made.type = *wholeType(slot, lane);
    else
      made.offset_bytes += lane * lane_bytes_[slot];
    exe_.slots.push_back(std::move(made));
    return found->second;
  }

  void moveTo(Instruction& instruction, int32_t lane) {
    for (Arg& arg : instruction.args) {
      if (arg.kind == Arg::Kind::kId) arg.i = slotOf(arg.i, lane);
      if (arg.kind == Arg::Kind::kIdList || arg.kind == Arg::Kind::kOptionalIdList)
        for (int64_t& id : arg.ints) id = slotOf(id, lane);
    }
    for (auto& group : instruction.results)
      for (int32_t& slot : group) slot = slotOf(slot, lane);
    for (int32_t& slot : instruction.writes) slot = slotOf(slot, lane);
  }

  Executable& exe_;
  std::vector<int64_t> lane_bytes_;  // by slot of one micro-batch
  bool joins_inputs_;
  std::vector<std::pair<int32_t, Type>> arguments_;      // with their groups
  std::vector<const Type*> argument_;                    // by group
  std::map<std::pair<int32_t, int32_t>, int32_t> made_;  // by slot and lane
};

}  // namespace

void addLanes(Executable& executable, const std::vector<int64_t>& lane_bytes, bool joins_inputs,
              const std::vector<MessageSegments>& messages) {
  LaneMaker(executable, lane_bytes, joins_inputs).run(messages);
}

}  // namespace abele::exe
