#include "runtime/device/aten/gelu_call.h"

#include <algorithm>

#include "runtime/kernels/exact_gelu.h"

namespace abele::runtime {
namespace {

class GeluCall final : public Call {
 public:
  GeluCall(SlotRef x, SlotRef out) : x_(x), out_(out) {}
  void run(CallState& state) override {
    at::Tensor out = out_.at(state.frame_of_group);
    exactGeluInto(out, x_.at(state.frame_of_group));
  }

 private:
  SlotRef x_, out_;
};

class GeluBackwardCall final : public Call {
 public:
  GeluBackwardCall(SlotRef grad, SlotRef x, SlotRef out) : grad_(grad), x_(x), out_(out) {}
  void run(CallState& state) override {
    at::Tensor out = out_.at(state.frame_of_group);
    exactGeluBackwardInto(out, grad_.at(state.frame_of_group), x_.at(state.frame_of_group));
  }

 private:
  SlotRef grad_, x_, out_;
};

}  // namespace

std::unique_ptr<Call> makeGeluCall(const exe::Instruction& instruction, const SlotTable& slots) {
  const bool is_gradient = instruction.op == "aten::gelu_backward";
  const std::size_t tensors = is_gradient ? 2 : 1;
  const std::vector<Arg>& args = instruction.args;
  if ((!is_gradient && instruction.op != "aten::gelu") || !slots.device().is_cpu() || args.size() != tensors + 1 ||
      args.back().s != "none")
    return nullptr;
  // The rest is for the out= kernel of ATen, which knows what to do with other layouts.
  const auto isDense = [&](int64_t id) {
    const Type& type = slots.typeOf(static_cast<int32_t>(id));
    return type.dtype == DType::kFloat32 && type == contiguousType(type.dtype, type.sizes);
  };
  const bool are_dense = std::all_of(args.begin(), args.end() - 1, [&](const Arg& arg) {
    return arg.kind == Arg::Kind::kId && arg.i >= 0 && isDense(arg.i);
  });
  const int32_t out = instruction.results[0][0];
  if (!are_dense || !isDense(out)) return nullptr;
  const auto slot = [&](const Arg& arg) { return slots.ref(static_cast<int32_t>(arg.i)); };
  if (is_gradient) return std::make_unique<GeluBackwardCall>(slot(args[0]), slot(args[1]), slots.ref(out));
  return std::make_unique<GeluCall>(slot(args[0]), slots.ref(out));
}

}  // namespace abele::runtime
