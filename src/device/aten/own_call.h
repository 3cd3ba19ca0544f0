// Instructions whose op starts with "abele::". Table: base/instructions.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/aten/gradient_count.h"
#include "device/aten/operator_call.h"
#include "kernels/optimizers.h"

namespace abele::device {

/// hypers: the numbers by parameter group. Requires: it does not move after all calls are made. gradients: records
/// skipped updates.
std::unique_ptr<Call> makeOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                  std::vector<kernels::Hyper>& hypers, GradientCount& gradients);
/// The call of an instruction that sums or updates float16: it computes in float32 and rounds stochastically. Null for
/// other instructions.
std::unique_ptr<Call> makeRoundedOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                         std::vector<kernels::Hyper>& hypers, GradientCount& gradients);

/// The instructions at the start of the list that one of torch's updates over lists can make on an accelerator:
/// consecutive updates with one group's numbers. Only the first instruction if it is no such update.
std::span<const exe::Instruction> updatesFrom(std::span<const exe::Instruction> instructions);
/// These updates as one call. Requires: more than one.
std::unique_ptr<Call> makeUpdatesCall(std::span<const exe::Instruction> updates, const SlotTable& slots,
                                      std::vector<kernels::Hyper>& hypers);

/// The number of parameter groups that updates name, and at least 1.
std::size_t countHyperGroups(const exe::Executable& executable);
/// Slots that an update reads as numbers, not as tensors: its step and its clipping factor. They are in the host's
/// memory on every kind of device.
std::vector<int32_t> slotsReadByHost(const exe::Instruction& instruction);

}  // namespace abele::device
