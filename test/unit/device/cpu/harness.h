// Shared by the tests of the CPU devices.
#pragma once

#include "../programs.h"
#include "device/cpu/cpu_backend.h"

namespace abele::device::testing {

struct Runner : RunnerOf<CpuBackend> {
  explicit Runner(const Program& program) : RunnerOf(program, CpuBackend::create(program.executable, {})) {}
};

}  // namespace abele::device::testing
