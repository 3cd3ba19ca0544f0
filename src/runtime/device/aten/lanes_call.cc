#include "runtime/device/aten/lanes_call.h"

#include <utility>
#include <vector>

#include "runtime/kernels/joined_rows.h"

namespace abele::runtime {
namespace {

class LanesCall final : public Call {
 public:
  using Make = std::function<std::unique_ptr<Call>(const exe::Instruction&)>;
  LanesCall(const exe::Instruction* joint, const SlotTable& slots, Make make)
      : joint_(joint), slots_(slots), make_(std::move(make)) {}

  void run(CallState& state) override {
    if (calls_.empty()) choose();
    if (is_one_) return calls_[0]->run(state);
    for (std::size_t lane = 0; lane < calls_.size(); ++lane) calls_[lane]->run(state.lanes[lane]);
  }

 private:
  void choose() {
    is_one_ = joinsRows({*joint_, joint_[1], slots_.slots(), joint_->joins});
    if (is_one_) {
      calls_.push_back(make_(*joint_));
      return;
    }
    std::vector<std::unique_ptr<Call>> parts;
    for (int32_t part = 1; part <= joint_->joins; ++part) parts.push_back(make_(joint_[part]));
    calls_ = std::move(parts);
  }

  const exe::Instruction* joint_;  // its parts follow it
  const SlotTable& slots_;
  Make make_;
  bool is_one_ = false;
  std::vector<std::unique_ptr<Call>> calls_;  // none before the first run
};

}  // namespace

std::unique_ptr<Call> makeLanesCall(const exe::Instruction* instruction, const SlotTable& slots,
                                    std::function<std::unique_ptr<Call>(const exe::Instruction&)> make) {
  if (!mayJoinRows(*instruction)) return nullptr;
  return std::make_unique<LanesCall>(instruction, slots, std::move(make));
}

}  // namespace abele::runtime
