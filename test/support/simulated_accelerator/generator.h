// Random numbers of simulated devices. Private to the simulation.
#pragma once

#include <optional>

#include <ATen/core/Generator.h>

#include "clock.h"

namespace simulated {

/// Where the kernels of a device's replayed graphs find seed and offset. A replay writes them before its kernels run:
/// replays of two streams that nothing orders take each other's numbers.
struct GraphNumbers;

/// Of one kernel.
struct Numbers {
  at::Generator generator;                 // of the host: what the kernel draws from
  const GraphNumbers* of_graph = nullptr;  // null: the generator is ready
  uint64_t offset = 0;                     // from where a replay of the graph begins
  void prepare();
  Access access() const;
};

/// For one kernel that makes `elements` numbers: they follow from the device's generator (or the given one), which
/// moves on.
Numbers takeNumbers(const std::optional<at::Generator>& given, int device, int64_t elements);
/// Before a replay whose kernels draw: enqueues what they begin with, and moves the device's default generator.
void giveNumbers(int device, int stream, uint64_t drawn);

}  // namespace simulated
