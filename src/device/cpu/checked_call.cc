#include "device/cpu/checked_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/instructions.h"
#include "exe/instruction_slots.h"

namespace abele::device {
namespace {

struct Found {
  bool nan = false;
  bool inf = false;
  bool any() const { return nan || inf; }
  void add(const Found& other) {
    nan = nan || other.nan;
    inf = inf || other.inf;
  }
  void add(double value) { add({std::isnan(value), std::isinf(value)}); }
};

Found lookAt(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.is_complex()) return lookAt(at::view_as_real(tensor.resolve_conj()));
  if (!tensor.defined() || !tensor.is_floating_point()) return {};
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16: return {at::isnan(tensor).any().item<bool>(), at::isinf(tensor).any().item<bool>()};
    default: return {};
  }
}

// Turns "aten::lt.Tensor" into "lt"; in-place names lose their underscore.
std::string_view plainName(std::string_view op) {
  op.remove_prefix(std::min(op.size(), op.find("::") + 2));
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_')) op.remove_suffix(1);
  return op;
}

bool comparesNumbers(std::string_view name) {
  static constexpr std::string_view kNames[] = {"lt", "le", "gt", "ge", "eq", "ne"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// True for operators whose results are not written yet, or not computed by arithmetic.
bool isNoArithmetic(std::string_view op) {
  const std::string_view name = plainName(op);
  return name.starts_with("empty") || name.starts_with("new_empty") || hasTrait(op, kMovesBits);
}

class CheckedCall final : public Call {
 public:
  CheckedCall(std::unique_ptr<Call> call, const exe::Executable& executable, const exe::Instruction& instruction,
              const SlotTable& slots)
      : call_(std::move(call)),
        executable_(executable),
        instruction_(instruction),
        compares_(comparesNumbers(plainName(instruction.op))) {
    for (const Arg& arg : instruction.args)
      if (arg.kind == Arg::Kind::kDouble || (arg.kind == Arg::Kind::kNumber && arg.number_kind == Arg::Kind::kDouble))
        constants_.add(arg.d);
    exe::forEachOperand(instruction, [&](int32_t id) {
      if (std::ranges::find(instruction.writes, id) == instruction.writes.end()) read_.push_back(slots.ref(id));
    });
    for (const int32_t id : instruction.writes)
      if (id >= 0) changed_.push_back(slots.ref(id));
    exe::forEachResult(instruction, [&](int32_t id) { results_.push_back(slots.ref(id)); });
  }

  void run(CallState& state) override {
    const int32_t* frames = state.frame_of_group;
    Found before = constants_;
    for (const SlotRef& slot : changed_) before.add(lookAt(slot.at(frames)));
    if (compares_ && before.nan) fail("a NaN was compared");
    if (compares_)
      for (const SlotRef& slot : read_)
        if (lookAt(slot.at(frames)).nan) fail("a NaN was compared");
    call_->run(state);
    Found after;
    for (const SlotRef& slot : changed_) after.add(lookAt(slot.at(frames)));
    for (const SlotRef& slot : results_) after.add(lookAt(slot.at(frames)));
    if (!after.any()) return;
    for (const SlotRef& slot : read_) before.add(lookAt(slot.at(frames)));
    if (after.nan && !before.nan) fail("an invalid operation gave NaN");
    if (after.inf && !before.any()) fail("an overflow or a division by zero gave infinity");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const std::string line = instruction_.source < 0 ? "" : cat(executable_.sources[instruction_.source], ", ");
    throwUser(ErrorCode::E0604, {.what = what,
                                 .at = cat(line, instruction_.op),
                                 .expected = "finite results of finite operands",
                                 .remedy = "keep the values in range, or leave floating-point exceptions off"});
  }

  std::unique_ptr<Call> call_;
  const exe::Executable& executable_;
  const exe::Instruction& instruction_;
  bool compares_;
  Found constants_;  // infinities that the program itself contains
  std::vector<SlotRef> read_, changed_, results_;
};

}  // namespace

std::unique_ptr<Call> makeCheckedCall(std::unique_ptr<Call> call, const exe::Executable& executable,
                                      const exe::Instruction& instruction, const SlotTable& slots) {
  if (isNoArithmetic(instruction.op)) return call;
  return std::make_unique<CheckedCall>(std::move(call), executable, instruction, slots);
}

}  // namespace abele::device
