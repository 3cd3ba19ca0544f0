#include "device/aten/counted_call.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Half.h>

#include <cmath>

#include "base/instructions.h"

namespace abele::device {
namespace {

class CountedCall final : public Call {
 public:
  CountedCall(std::unique_ptr<Call> call, std::vector<SlotRef> results, double edge, GradientCount& count)
      : call_(std::move(call)), results_(std::move(results)), edge_(static_cast<float>(edge)), count_(count) {}

  void run(CallState& state) override {
    call_->run(state);
    int64_t large = 0, all = 0;
    for (const SlotRef& slot : results_) {
      const at::Tensor& tensor = slot.at(state.frame_of_group);
      if (!tensor.defined()) continue;
      const at::Tensor dense = tensor.contiguous();
      const c10::Half* values = dense.const_data_ptr<c10::Half>();
      all += dense.numel();
      for (int64_t i = 0; i < dense.numel(); ++i) large += !(std::abs(static_cast<float>(values[i])) <= edge_);
    }
    count_.large += large;
    count_.all += all;
  }

 private:
  std::unique_ptr<Call> call_;
  std::vector<SlotRef> results_;
  float edge_;
  GradientCount& count_;
};

// The same, counted by operators of the device.
class CallCountedThere final : public Call {
 public:
  CallCountedThere(std::unique_ptr<Call> call, std::vector<SlotRef> results, double edge, GradientCount& count,
                   at::Tensor large)
      : call_(std::move(call)),
        results_(std::move(results)),
        edge_(static_cast<float>(edge)),
        count_(count),
        large_(std::move(large)) {}

  void run(CallState& state) override {
    call_->run(state);
    for (const SlotRef& slot : results_) {
      const at::Tensor& tensor = slot.at(state.frame_of_group);
      if (!tensor.defined()) continue;
      count_.all += tensor.numel();
      large_.add_(tensor.to(at::kFloat).abs().le(edge_).logical_not().sum());
    }
  }

 private:
  std::unique_ptr<Call> call_;
  std::vector<SlotRef> results_;
  float edge_;
  GradientCount& count_;
  at::Tensor large_;
};

}  // namespace

std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count,
                                      const at::Tensor& large) {
  if (hasTrait(instruction.op, kMovesBits) || instruction.op.starts_with("aten::empty")) return call;
  std::vector<SlotRef> halves;
  const auto add = [&](int32_t id) {
    if (id >= 0 && slots.typeOf(id).dtype == DType::kFloat16) halves.push_back(slots.ref(id));
  };
  for (const int32_t id : instruction.writes) add(id);
  for (const std::vector<int32_t>& ids : instruction.results)
    for (const int32_t id : ids) add(id);
  if (halves.empty()) return call;
  if (large.defined())
    return std::make_unique<CallCountedThere>(std::move(call), std::move(halves), edge, count, large);
  return std::make_unique<CountedCall>(std::move(call), std::move(halves), edge, count);
}

}  // namespace abele::device
