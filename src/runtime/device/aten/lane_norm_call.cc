#include "runtime/device/aten/lane_norm_call.h"

#include <utility>

#include "runtime/kernels/joined_rows.h"
#include "runtime/kernels/norm_gradients.h"

namespace abele::runtime {
namespace {

// Arguments and results of native_layer_norm_backward.
enum : std::size_t { kGrad, kInput, kSizes, kMean, kScale, kWeight, kBias, kMask };
enum : std::size_t { kOfInput, kOfWeight, kOfBias, kResults };

int32_t resultOf(const exe::Instruction& instruction, std::size_t index) {
  if (index >= instruction.results.size() || instruction.results[index].empty()) return -1;
  return instruction.results[index][0];
}

class LaneNormCall final : public Call {
 public:
  LaneNormCall(const LaneGroup& group, const SlotTable& slots) : lanes_(group.lanes) {
    const auto argument = [&](std::size_t i) { return slots.ref(static_cast<int32_t>(group.joint->args[i].i)); };
    grad_ = argument(kGrad), input_ = argument(kInput), mean_ = argument(kMean), scale_ = argument(kScale);
    weight_ = slots.ref(resultOf(*group.joint, kOfWeight)), bias_ = slots.ref(resultOf(*group.joint, kOfBias));
  }
  void run(CallState& state) override {
    const auto tensor = [&](const SlotRef& slot) { return slot.frames ? slot.at(state.frame_of_group) : at::Tensor(); };
    normGradientsInto({.grad = tensor(grad_),
                       .x = tensor(input_),
                       .mean = tensor(mean_),
                       .scale = tensor(scale_),
                       .weight = tensor(weight_),
                       .bias = tensor(bias_),
                       .lanes = lanes_});
  }

 private:
  int64_t lanes_;
  SlotRef grad_, input_, mean_, scale_, weight_, bias_;
};

// The kernel of ours reads and writes rows of float32 one behind the other.
bool isPlain(const exe::Instruction& joint, const SlotTable& slots) {
  const auto isRows = [&](int64_t id) {
    if (id < 0) return false;
    const Type& type = slots.typeOf(static_cast<int32_t>(id));
    return type.dtype == DType::kFloat32 && type == contiguousType(type.dtype, type.sizes);
  };
  for (const std::size_t i : {kGrad, kInput, kMean, kScale})
    if (joint.args[i].kind != Arg::Kind::kId || !isRows(joint.args[i].i)) return false;
  for (const std::size_t r : {kOfWeight, kOfBias})
    if (const int32_t slot = resultOf(joint, r); slot >= 0 && !isRows(slot)) return false;
  return true;
}

}  // namespace

ChooseCalls chooseLaneNorm(const LaneGroup& group, const SlotTable& slots, const MakePart& make) {
  if (!group.joint || group.joint->op != "aten::native_layer_norm_backward" || !slots.device().is_cpu() ||
      group.joint->args.size() != kMask + 1)
    return nullptr;
  const std::vector<int64_t>& mask = group.joint->args[kMask].ints;
  if (mask.size() != kResults || (resultOf(*group.joint, kOfWeight) < 0 && resultOf(*group.joint, kOfBias) < 0) ||
      !isPlain(*group.joint, slots))
    return nullptr;
  exe::Instruction of_input = *group.joint;
  of_input.args[kMask].ints = {1, 0, 0};
  of_input.results = {{resultOf(*group.joint, kOfInput)}, {-1}, {-1}};
  return [group, of_input, mask, &slots, make](const CallState&) {
    const int64_t rows = slots.typeOf(static_cast<int32_t>(group.part(0).args[kMean].i)).numel();
    const int64_t width = slots.typeOf(static_cast<int32_t>(group.part(0).args[kInput].i)).numel() / rows;
    const bool has_input = resultOf(of_input, kOfInput) >= 0;
    std::vector<LaneCall> calls;
    if (!givesNormGradients(rows, width, mask[kOfInput] != 0, mask[kOfWeight] != 0, mask[kOfBias] != 0) ||
        (has_input && !joinsRows({of_input, group.part(0), slots.slots(), group.lanes})))
      return calls;
    if (has_input) calls.push_back({make(of_input)});
    calls.push_back({std::make_unique<LaneNormCall>(group, slots)});
    return calls;
  };
}

}  // namespace abele::runtime
