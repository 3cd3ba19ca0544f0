#include "runtime/device/aten/lane_sum_call.h"

#include <utility>

#include "base/instructions.h"
#include "runtime/kernels/lane_sums.h"

namespace abele::runtime {
namespace {

bool isDense(const Type& type) { return type == contiguousType(type.dtype, type.sizes); }

// One operand of all parts.
class LaneOperand {
 public:
  LaneOperand(const LaneGroup& group, std::size_t argument, const SlotTable& slots) {
    for (int64_t lane = 0; lane < group.lanes; ++lane) {
      const auto slot = static_cast<int32_t>(group.part(lane).args[argument].i);
      const Type& type = slots.typeOf(slot);
      if (lane == 0) type_ = &type;
      are_alike_ = are_alike_ && type == *type_;
      slots_.push_back(slots.ref(slot));
    }
  }
  /// Of the first lane, and of all if they are alike.
  const Type& type() const { return *type_; }
  bool areAlike() const { return are_alike_; }
  const at::Tensor& first(const CallState& state) const { return slots_[0].at(state.lanes[0].frame_of_group); }
  void pointInto(std::vector<const float*>& all, const CallState& state) const {
    all.clear();
    for (std::size_t lane = 0; lane < slots_.size(); ++lane)
      all.push_back(slots_[lane].at(state.lanes[lane].frame_of_group).const_data_ptr<float>());
  }

 private:
  std::vector<SlotRef> slots_;  // by lane
  const Type* type_ = nullptr;
  bool are_alike_ = true;
};

class AddLanes final : public Call {
 public:
  AddLanes(SlotRef sum, LaneOperand terms) : sum_(sum), terms_(std::move(terms)) {}
  void run(CallState& state) override {
    terms_.pointInto(pointers_, state);
    addLanes(sum_.at(state.frame_of_group), pointers_, state.beginsSum());
  }

 private:
  SlotRef sum_;
  LaneOperand terms_;
  std::vector<const float*> pointers_;
};

class AddProducts final : public Call {
 public:
  AddProducts(SlotRef sum, LaneOperand left, LaneOperand right)
      : sum_(sum), left_(std::move(left)), right_(std::move(right)) {}
  bool multiplies(const CallState& state, int64_t lanes) const {
    return multipliesLanes(sum_.at(state.frame_of_group), left_.first(state), right_.first(state), lanes);
  }
  void run(CallState& state) override {
    LaneFactors factors{left_.first(state), right_.first(state), std::move(lefts_), std::move(rights_)};
    left_.pointInto(factors.lefts, state);
    right_.pointInto(factors.rights, state);
    addLaneProducts(sum_.at(state.frame_of_group), factors, state.beginsSum());
    lefts_ = std::move(factors.lefts);  // memory for the next run
    rights_ = std::move(factors.rights);
  }

 private:
  SlotRef sum_;
  LaneOperand left_, right_;
  std::vector<const float*> lefts_, rights_;
};

}  // namespace

ChooseCalls chooseLaneSum(const LaneGroup& group, const SlotTable& slots, const MakePart& /*make*/) {
  const exe::Instruction& part = group.part(0);
  const OwnOp op = ownOp(part.op);
  if ((op != OwnOp::kAccumulate && op != OwnOp::kAccumulateProduct) || !slots.device().is_cpu()) return nullptr;
  const auto to = static_cast<int32_t>(part.args[0].i);
  const SlotRef sum = slots.ref(to);
  const Type& type = slots.typeOf(to);
  const auto isFloat = [](const LaneOperand& operand) {
    return operand.areAlike() && operand.type().dtype == DType::kFloat32;
  };
  if (type.dtype != DType::kFloat32 || !isDense(type)) return nullptr;
  const LaneOperand terms(group, 1, slots);
  if (!isFloat(terms)) return nullptr;
  if (op == OwnOp::kAccumulate) {
    if (terms.type() != type) return nullptr;
    return [sum, terms](const CallState&) {
      std::vector<LaneCall> calls;
      calls.push_back({std::make_unique<AddLanes>(sum, terms)});
      return calls;
    };
  }
  const LaneOperand factors(group, 2, slots);
  const bool reorders = part.args.size() > 3 && part.args[3].i != 0;
  if (reorders || !isFloat(factors)) return nullptr;
  return [sum, terms, factors, lanes = group.lanes](const CallState& state) {
    auto products = std::make_unique<AddProducts>(sum, terms, factors);
    std::vector<LaneCall> calls;
    if (products->multiplies(state, lanes)) calls.push_back({std::move(products)});
    return calls;
  };
}

}  // namespace abele::runtime
