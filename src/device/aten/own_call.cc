#include "device/aten/own_call.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/instructions.h"
#include "kernels/basic.h"
#include "kernels/gradient_sums.h"

namespace abele::device {
namespace {

// Looks up slots; some of them may be replaced by others.
class SlotLookup {
 public:
  explicit SlotLookup(const SlotTable& slots) : slots_(slots) {}
  SlotRef ref(int32_t slot) const {
    const auto found = replaced_.find(slot);
    return found == replaced_.end() ? slots_.ref(slot) : found->second;
  }
  void replace(int32_t slot, SlotRef by) { replaced_[slot] = by; }

 private:
  const SlotTable& slots_;
  std::map<int32_t, SlotRef> replaced_;
};

// Arguments by position, checked.
class Arguments {
 public:
  Arguments(const exe::Instruction& instruction, const SlotLookup& slots) : instruction_(instruction), slots_(slots) {}

  SlotRef slot(std::size_t i) const {
    const SlotRef ref = slotOrNone(i);
    ABELE_CHECK(ref.frames != nullptr, instruction_.op, " argument ", i, " is absent");
    return ref;
  }
  SlotRef slotOrNone(std::size_t i) const {
    const Arg& arg = at(i);
    if (arg.kind == Arg::Kind::kNone) return {};
    ABELE_CHECK(arg.kind == Arg::Kind::kId, instruction_.op, " argument ", i, " is not a slot");
    return slots_.ref(static_cast<int32_t>(arg.i));
  }
  SlotRef slotIfGiven(std::size_t i) const { return i < instruction_.args.size() ? slotOrNone(i) : SlotRef{}; }
  std::vector<SlotRef> slots(std::size_t i) const {
    std::vector<SlotRef> refs;
    for (int64_t id : at(i).ints) refs.push_back(slots_.ref(static_cast<int32_t>(id)));
    return refs;
  }
  SlotRef result(std::size_t i) const { return slots_.ref(instruction_.results.at(i).at(0)); }
  int64_t integer(std::size_t i) const { return at(i).i; }
  double real(std::size_t i) const { return at(i).d; }
  bool flag(std::size_t i) const { return i < instruction_.args.size() && at(i).i != 0; }

 private:
  const Arg& at(std::size_t i) const {
    ABELE_CHECK(i < instruction_.args.size(), instruction_.op, " lacks argument ", i);
    return instruction_.args[i];
  }
  const exe::Instruction& instruction_;
  const SlotLookup& slots_;
};

// With OutputMode.Sum several micro-batches have one output tensor: the first copies into it, the others add to it.
std::unique_ptr<Call> makeEmit(const Arguments& args) {
  return callOf([output = args.slot(0), source = args.slot(1)](CallState& state) {
    const int64_t frame = state.action.micro_batch;
    const at::Tensor& bound = output.frames[frame];
    if (!bound.defined()) return;
    const bool again = frame > 0 && output.frames[frame - 1].defined() &&
                       output.frames[frame - 1].const_data_ptr() == bound.const_data_ptr();
    kernels::addInto(bound, source.at(state.frame_of_group), /*first=*/!again);
  });
}

std::unique_ptr<Call> makeAccumulate(const Arguments& args) {
  return callOf([sum = args.slot(0), term = args.slot(1)](CallState& state) {
    const at::Tensor &to = sum.at(state.frame_of_group), &from = term.at(state.frame_of_group);
    const bool first = state.beginsSum();
    // If a gradient is not added to others, the plan has it made in the accumulator's memory.
    if (!first || to.const_data_ptr() != from.const_data_ptr()) kernels::addInto(to, from, first);
  });
}

std::unique_ptr<Call> makeAccumulateProduct(const Arguments& args) {
  return callOf([sum = args.slot(0), left = args.slot(1), right = args.slot(2),
                 product = kernels::ProductSum(args.flag(3))](CallState& state) mutable {
    const int32_t* frames = state.frame_of_group;
    product.add(sum.at(frames), left.at(frames), right.at(frames), state.beginsSum());
  });
}

std::unique_ptr<Call> makeAccumulateRows(const Arguments& args) {
  return callOf([sum = args.slot(0), gradient = args.slot(1), indices = args.slot(2), padding = args.integer(3),
                 rows = kernels::RowSum()](CallState& state) mutable {
    const int32_t* frames = state.frame_of_group;
    rows.add(sum.at(frames), gradient.at(frames), indices.at(frames), padding, state.beginsSum());
  });
}

const kernels::Hyper* hyperOf(std::vector<kernels::Hyper>& hypers, int64_t group) {
  ABELE_CHECK(group >= 0 && group < static_cast<int64_t>(hypers.size()), "parameter group ", group);
  return &hypers[static_cast<std::size_t>(group)];
}

// A clipping factor that means: gradients are not finite, so updates do nothing.
constexpr float kSkipUpdates = -1;

// An update's numbers, scaled by the clipping factor if the program clips gradients.
class ScaledHyper {
 public:
  ScaledHyper(const kernels::Hyper* hyper, SlotRef factor) : hyper_(hyper), factor_(factor) {}
  /// Nothing: skip the update.
  std::optional<kernels::Hyper> now(const int32_t* frames) const {
    kernels::Hyper hyper = *hyper_;
    if (!factor_.frames) return hyper;
    const float factor = *factor_.at(frames).const_data_ptr<float>();
    if (factor == kSkipUpdates) return std::nullopt;
    hyper.gradient_scale *= factor;
    return hyper;
  }

 private:
  const kernels::Hyper* hyper_;
  SlotRef factor_;
};

// Consecutive updates with the numbers of one group, as one call.
std::unique_ptr<Call> makeUpdates(std::span<const exe::Instruction> updates, const SlotLookup& slots,
                                  std::vector<kernels::Hyper>& hypers) {
  const OptimizerRow& row =
      *std::ranges::find_if(allOptimizers(), [&](const OptimizerRow& each) { return updates.front().op == each.op; });
  struct Refs {
    std::vector<SlotRef> tensors;
    SlotRef step;
  };
  std::vector<Refs> refs;
  std::size_t next = 0;
  const auto add = [&](const Arguments& args, bool is_behind_factor) {
    for (const OptimizerState& state : row.states) {
      if (state.is_behind_factor != is_behind_factor) continue;
      const bool is_step = state.type == OptimizerState::Type::kStep;
      const SlotRef ref = state.kept_if ? args.slotIfGiven(next) : args.slot(next);
      is_step ? refs.back().step = ref : refs.back().tensors.emplace_back(ref);
      ++next;
    }
  };
  std::optional<ScaledHyper> hyper;
  bool flag = false;
  for (const exe::Instruction& update : updates) {
    const Arguments args(update, slots);
    refs.push_back({.tensors = {args.slot(0), args.slot(1)}, .step = {}});
    next = 2;
    add(args, /*is_behind_factor=*/false);
    const int64_t group = args.integer(next++);
    flag = row.flag.name && args.flag(next++);
    hyper.emplace(hyperOf(hypers, group), args.slotIfGiven(next++));
    add(args, /*is_behind_factor=*/true);
  }
  return callOf([refs = std::move(refs), hyper = *hyper, flag, kind = row.kind](CallState& state) {
    const int32_t* frames = state.frame_of_group;
    const auto at = [&](const SlotRef& ref) { return ref.frames ? ref.at(frames) : at::Tensor(); };
    const auto now = hyper.now(frames);
    if (!now) return;
    std::vector<kernels::UpdateTensors> all;
    for (const Refs& of : refs) {
      kernels::UpdateTensors& one = all.emplace_back();
      for (const SlotRef& ref : of.tensors) one.tensors.push_back(at(ref));
      one.step = at(of.step);
    }
    kernels::update(kind, flag, all, *now);
  });
}

// All groups scale their gradients alike, because loss scaling is one number.
std::unique_ptr<Call> makeClipFactor(const Arguments& args, std::vector<kernels::Hyper>& hypers, GradientCount& found) {
  ABELE_CHECK(!hypers.empty(), "a clipping factor without an optimizer");
  return callOf([factor = args.result(0), sums = args.slots(0), limit = args.real(1), skips = args.flag(2),
                 hyper = &hypers[0], &found](CallState& state) {
    std::vector<at::Tensor> gradients;
    for (const SlotRef& sum : sums) gradients.push_back(sum.at(state.frame_of_group));
    float& result = *factor.at(state.frame_of_group).mutable_data_ptr<float>();
    if (skips && !kernels::areFinite(gradients)) {
      found.overflowed = true;
      result = kSkipUpdates;
      return;
    }
    result = limit == 0 ? 1 : static_cast<float>(kernels::clipFactor(gradients, hyper->gradient_scale, limit));
  });
}

std::unique_ptr<Call> makeCallOn(const exe::Instruction& instruction, const SlotLookup& slots,
                                 std::vector<kernels::Hyper>& hypers, GradientCount& gradients) {
  const Arguments args(instruction, slots);
  switch (ownOp(instruction.op)) {
    case OwnOp::kCopy:
    case OwnOp::kTransfer:
      return callOf([to = args.slot(0), from = args.slot(1)](CallState& state) {
        kernels::copyInto(to.at(state.frame_of_group), from.at(state.frame_of_group));
      });
    case OwnOp::kZero:
      return callOf([to = args.slot(0)](CallState& state) { kernels::fillZero(to.at(state.frame_of_group)); });
    case OwnOp::kEmit: return makeEmit(args);
    case OwnOp::kAccumulate: return makeAccumulate(args);
    case OwnOp::kAccumulateProduct: return makeAccumulateProduct(args);
    case OwnOp::kAccumulateRows: return makeAccumulateRows(args);
    case OwnOp::kAdd:
      return callOf([sum = args.slot(0), term = args.slot(1)](CallState& state) {
        kernels::addInto(sum.at(state.frame_of_group), term.at(state.frame_of_group), /*first=*/false);
      });
#define ABELE_OPTIMIZER(kind, ...) case OwnOp::kind##Update:
#include "base/optimizers.def"
      return makeUpdates({&instruction, 1}, slots, hypers);
    case OwnOp::kClipFactor: return makeClipFactor(args, hypers, gradients);
    case OwnOp::kAddPrevious:
    case OwnOp::kShareSum:  // in joint_call.cc
    case OwnOp::kSend:
    case OwnOp::kReceive:  // in message_call.cc
    case OwnOp::kNone: break;
  }
  throwInternal(__FILE__, __LINE__, "makeOwnCall", cat("no kernel for ", instruction.op));
}

// Works on float32 copies of float16 slots, and rounds the written ones back.
class RoundedOwnCall final : public Call {
 public:
  /// halves: the float16 slots; each has one frame.
  RoundedOwnCall(const exe::Instruction& instruction, const SlotTable& slots, std::vector<kernels::Hyper>& hypers,
                 GradientCount& gradients, const std::vector<int32_t>& halves) {
    copies_.reserve(halves.size());
    SlotLookup lookup(slots);
    for (const int32_t id : halves) {
      const auto& writes = instruction.writes;
      const bool written = std::find(writes.begin(), writes.end(), id) != writes.end();
      copies_.push_back({slots.ref(id), slots.tensor(id, 0).to(at::kFloat), written});
      lookup.replace(id, {&copies_.back().wide, slots.ref(id).group});
    }
    call_ = makeCallOn(instruction, lookup, hypers, gradients);
  }

  void run(CallState& state) override {
    for (const Copy& copy : copies_) kernels::copyInto(copy.wide, copy.slot.at(state.frame_of_group));
    call_->run(state);
    uint64_t part = 0;
    for (const Copy& copy : copies_)
      if (copy.written) kernels::roundInto(copy.slot.at(state.frame_of_group), copy.wide, state.rounding.of(part++));
  }

 private:
  struct Copy {
    SlotRef slot;
    at::Tensor wide;
    bool written;
  };
  std::vector<Copy> copies_;
  std::unique_ptr<Call> call_;
};

}  // namespace

std::unique_ptr<Call> makeOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                  std::vector<kernels::Hyper>& hypers, GradientCount& gradients) {
  return makeCallOn(instruction, SlotLookup(slots), hypers, gradients);
}

std::unique_ptr<Call> makeRoundedOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                         std::vector<kernels::Hyper>& hypers, GradientCount& gradients) {
  // Sums and updates write memory that has one frame; copies need no rounding.
  if (instruction.writes.empty() || hasTrait(instruction.op, kMovesBits)) return nullptr;
  std::vector<int32_t> halves;
  for (const Arg& arg : instruction.args) {
    if (arg.kind != Arg::Kind::kId || arg.i < 0) continue;
    const auto id = static_cast<int32_t>(arg.i);
    const bool is_half = slots.typeOf(id).dtype == DType::kFloat16;
    if (is_half && slots.framesOf(slots.ref(id).group) == 1) halves.push_back(id);
  }
  if (halves.empty()) return nullptr;
  return std::make_unique<RoundedOwnCall>(instruction, slots, hypers, gradients, halves);
}

// Recognises Adam's operands: parameter, sum, moments, step, group, and possibly a clipping factor.
std::span<const exe::Instruction> updatesFrom(std::span<const exe::Instruction> instructions) {
  const exe::Instruction& first = instructions.front();
  const OwnOp op = isOwn(first.op) ? ownOp(first.op) : OwnOp::kNone;
  std::size_t count = 1;
  if (op != OwnOp::kAdamUpdate && op != OwnOp::kAdamWUpdate) return instructions.first(count);
  const auto numbersOf = [](const exe::Instruction& of) { return std::span(of.args).subspan(5); };
  while (count < instructions.size() && instructions[count].op == first.op &&
         std::ranges::equal(numbersOf(instructions[count]), numbersOf(first)))
    ++count;
  return instructions.first(count);
}

std::unique_ptr<Call> makeUpdatesCall(std::span<const exe::Instruction> updates, const SlotTable& slots,
                                      std::vector<kernels::Hyper>& hypers) {
  return makeUpdates(updates, SlotLookup(slots), hypers);
}

std::size_t countHyperGroups(const exe::Executable& executable) {
  int64_t last = 0;
  for (const exe::Segment& segment : executable.segments)
    for (const exe::Instruction& instruction : segment.instructions) {
      const OwnOpRow* row = ownOpRow(instruction.op);
      const int at = row ? row->groupOperand() : -1;
      if (at >= 0 && instruction.args.size() > static_cast<std::size_t>(at))
        last = std::max(last, instruction.args[static_cast<std::size_t>(at)].i);
    }
  return static_cast<std::size_t>(last) + 1;
}

std::vector<int32_t> slotsReadByHost(const exe::Instruction& instruction) {
  std::vector<int32_t> slots;
  const OwnOpRow* row = ownOpRow(instruction.op);
  if (!row) return slots;
  for (std::size_t i = 0; i < std::min(row->operands.size(), instruction.args.size()); ++i) {
    const OperandKind kind = row->operands[i].kind;
    if ((kind == OperandKind::kScalar || kind == OperandKind::kScalarOrNone) &&
        instruction.args[i].kind == Arg::Kind::kId)
      slots.push_back(static_cast<int32_t>(instruction.args[i].i));
  }
  if ((row->traits & kGivesScalar) != 0) slots.push_back(instruction.results.at(0).at(0));
  return slots;
}

}  // namespace abele::device
