#include "device/aten/product_call.h"

#include "kernels/products.h"

namespace abele::device {
namespace {

bool isProduct(const Type& out, const Type& left, const Type& right) {
  return left.sizes.size() == 2 && right.sizes.size() == 2 && left.sizes[1] == right.sizes[0] &&
         out.sizes == std::vector<int64_t>{left.sizes[0], right.sizes[1]} && left.dtype == out.dtype &&
         right.dtype == out.dtype;
}

}  // namespace

std::unique_ptr<Call> makeProductCall(const exe::Instruction& instruction, const SlotTable& slots, const SlotRef& out) {
  const bool has_term = instruction.op == "aten::addmm";
  if ((!has_term && instruction.op != "aten::mm") || !slots.device().is_cpu()) return nullptr;
  const size_t tensors = has_term ? 3 : 2;
  for (size_t i = 0; i < instruction.args.size(); ++i) {
    const Arg& arg = instruction.args[i];
    const bool is_one = arg.kind == Arg::Kind::kInt && arg.i == 1;
    if (i < tensors ? arg.kind != Arg::Kind::kId || arg.i < 0 : !is_one) return nullptr;
  }
  const auto id = [&](size_t arg) { return static_cast<int32_t>(instruction.args[arg].i); };
  const int32_t left = id(tensors - 2), right = id(tensors - 1);
  if (!isProduct(slots.typeOf(instruction.results[0][0]), slots.typeOf(left), slots.typeOf(right))) return nullptr;
  if (!has_term)
    return callOf([out, a = slots.ref(left), b = slots.ref(right)](CallState& state) {
      const int32_t* frames = state.frame_of_group;
      kernels::exactProduct(out.at(frames), a.at(frames), b.at(frames), /*term=*/nullptr);
    });
  return callOf([out, term = slots.ref(id(0)), a = slots.ref(left), b = slots.ref(right)](CallState& state) {
    const int32_t* frames = state.frame_of_group;
    kernels::exactProduct(out.at(frames), a.at(frames), b.at(frames), &term.at(frames));
  });
}

}  // namespace abele::device
