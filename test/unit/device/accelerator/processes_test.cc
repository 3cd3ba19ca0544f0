// Accelerators of several processes. The processes are threads of this one, each with its own accelerators, so that one
// checker sees all streams. Messages go over a process group, as between real processes (test/multi).
#include "processes.h"

#include "runtime/runtime.h"

namespace abele::device::testing {
namespace {

TEST_F(Processes, StagesHandOverThroughTheHostAndAllHaveTheResults) {
  const Program p = twoStages(kMicroBatches);
  const auto peers = join(2);
  // A device of each; both processes on one; the second stage on the host.
  for (const char* devices : {"simulated:0,simulated:1", "simulated:2,simulated:2", "simulated:3,cpu"})
    runSteps(p, peers, /*size=*/4, /*steps=*/4, devices);
}

/// Each process adds its input to a sum; the sums of all are added to the weight.
Program sumOfProcesses(int processes, int64_t size) {
  Program p(2);
  exe::Executable& exe = p.executable;
  exe.training = true;
  exe.processes = processes;
  exe.groups[p.weights].worker = exe.groups[p.values].worker = 0;
  const int32_t in = p.input(f32({size}));
  const int32_t weight = p.external(f32({size}), exe::ExternalKind::kParameter);
  const int32_t sum = p.external(f32({size}), exe::ExternalKind::kAccumulator);
  exe.externals[1].owner = 0;
  exe.segments.push_back({0, exe::Direction::kUpdate, "reduce/processes", {}});
  exe.segments[0].direction = exe::Direction::kBackward;
  p.op("abele::accumulate", {Arg::id(sum), Arg::id(in)}).writes = {sum};
  p.update("abele::add", {Arg::id(weight), Arg::id(sum)}).writes = {weight};
  p.op("abele::add_previous", {Arg::idList({sum})}, {}, 2).writes = {sum};
  p.op("abele::share_sum", {Arg::idList({sum})}, {}, 2).writes = {sum};
  exe.workers[0].actions.back().waits = {{2, 1}};
  exe.workers.push_back({.device = 0, .actions = {{2, 1, {{0, 2}}}}, .space = 0, .from = 0, .to = 0});
  return p;
}

TEST_F(Processes, SumsAreAddedInTheOrderOfTheProcesses) {
  constexpr int kProcesses = 3;
  constexpr int64_t kSize = 1500001;  // several rounds of messages
  const Program p = sumOfProcesses(kProcesses, kSize);
  const auto peers = join(kProcesses);
  const at::Tensor first = at::randn({kSize});
  std::vector<at::Tensor> inputs;
  for (int process = 0; process < kProcesses; ++process) inputs.push_back(at::randn({2 * kSize}));
  at::Tensor expected = first.clone();
  at::Tensor all;
  for (const at::Tensor& own : inputs) {
    const at::Tensor sum = own.narrow(0, 0, kSize) + own.narrow(0, kSize, kSize);
    all = all.defined() ? all + sum : sum;
  }
  for (int step = 0; step < 3; ++step) expected += all;
  forEachProcess(kProcesses, [&](int process) {
    const auto i = static_cast<size_t>(process);
    const auto backend =
        makeBackend("accelerator", p.executable,
                    {.process = process, .peers = peers[i], .accelerator = "simulated:" + std::to_string(process)});
    backend->upload(0, first);
    runtime::Runtime runtime(p.executable, *backend, 0);
    for (int step = 0; step < 3; ++step) {
      backend->bindInputs({inputs[i]});
      backend->bindOutputs({});
      runtime.run();
    }
    EXPECT_TRUE(sameBits(backend->value(0), expected));
  });
}

}  // namespace
}  // namespace abele::device::testing
