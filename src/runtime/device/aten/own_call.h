// Instructions whose op starts with "abele::". Table: base/instructions.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/operator_call.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// hypers: by parameter group; grows until the calls are made, then stays where it is. gradients: is told when updates
/// are skipped.
std::unique_ptr<Call> makeOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                  std::vector<Hyper>& hypers, GradientCount& gradients);
/// An instruction that sums or updates float16: computed in float32 and rounded stochastically. Null for all others.
std::unique_ptr<Call> makeRoundedOwnCall(const exe::Instruction& instruction, const SlotTable& slots,
                                         std::vector<Hyper>& hypers, GradientCount& gradients);

/// Updates of an accelerator that torch makes over lists: [first, last) of a segment's instructions follow each other
/// with the numbers of one group. `first` alone where it is none.
std::span<const exe::Instruction> updatesFrom(std::span<const exe::Instruction> instructions);
/// They as one call. Requires: more than one.
std::unique_ptr<Call> makeUpdatesCall(std::span<const exe::Instruction> updates, const SlotTable& slots,
                                      std::vector<Hyper>& hypers);

/// Parameter groups that the updates name, and at least one.
std::size_t countHyperGroups(const exe::Executable& executable);
/// Slots of numbers that an update takes as numbers, not as tensors: its step and its clipping factor. They live in the
/// host's memory wherever the device's is.
std::vector<int32_t> slotsReadByHost(const exe::Instruction& instruction);

}  // namespace abele::runtime
