// The memory of a step's kernels, seen from the program around it: it does not grow.
#include <malloc.h>

#include <c10/core/CPUAllocator.h>

#include "harness.h"

namespace abele::device::testing {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

// Bytes that malloc has given out.
std::size_t bytesInUse() {
  const struct mallinfo2 state = mallinfo2();
  return state.uordblks + state.hblkhd;
}

// Runs an operator that needs `rows` KiB in addition to its result.
void runLogSumExp(int64_t rows) {
  const at::Tensor x = at::randn({rows, 256});
  Program p;
  const int32_t in = p.input(f32({rows, 256})), out = p.value(f32({rows}));
  p.op("aten::logsumexp", {Arg::id(in), Arg::intList({1}), Arg::boolean(false)}, {out});
  p.emit(out);
  Runner runner(p);
  for (int i = 0; i < 3; ++i) runner.step({x});
}

// oneDNN takes its workspaces by raw address, in eager programs as well, and on the thread that runs the first device.
TEST(Allocator, RawBlocksOfEagerKernelsAreFreedAfterAStep) {
  runLogSumExp(8);
  c10::Allocator* allocator = c10::GetCPUAllocator();
  const std::size_t before = bytesInUse();
  for (int i = 0; i < 64; ++i) allocator->raw_deallocate(allocator->raw_allocate(kBlockBytes));
  EXPECT_LT(bytesInUse(), before + 4 * kBlockBytes);
}

TEST(Allocator, WorkspacesGoWithTheirExecutable) {
  runLogSumExp(8);
  const std::size_t before = bytesInUse();
  for (int64_t i = 1; i <= 8; ++i) runLogSumExp(1000 * i);  // each of its own size, 35 MiB together
  EXPECT_LT(bytesInUse(), before + 8 * kBlockBytes);
}

}  // namespace
}  // namespace abele::device::testing
