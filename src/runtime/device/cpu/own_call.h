// Instructions whose op starts with "abele::". Table: base/instructions.h.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/cpu/counted_call.h"
#include "runtime/device/cpu/operator_call.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// hypers: by parameter group; grows until the calls are made, then stays where it is. gradients: is told when updates
/// are skipped.
std::unique_ptr<Call> makeOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                  std::vector<Hyper>& hypers, GradientCount& gradients);
/// An instruction that sums or updates float16: computed in float32 and rounded stochastically. Null for all others.
std::unique_ptr<Call> makeRoundedOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                         std::vector<Hyper>& hypers, GradientCount& gradients);

}  // namespace abele::runtime
