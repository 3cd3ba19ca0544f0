// Accelerators of several processes. The processes are threads of this one, each with accelerators of its own, so that
// one judge sees all streams; what they send goes over a process group, as between real ones (test/multi).
#include <sys/socket.h>

#include <netinet/in.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "../programs.h"
#include "runtime/collective/gloo.h"
#include "runtime/collective/peers.h"
#include "runtime/runtime.h"
#include "simulated_accelerator/simulated.h"

namespace abele::runtime::testing {
namespace {

int freePort() {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(probe, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(probe);
  return ntohs(address.sin_port);
}

void forEachProcess(int processes, const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process) threads.emplace_back([&fn, process] { fn(process); });
  for (std::thread& thread : threads) thread.join();
}

struct Processes : ::testing::Test {
  void SetUp() override {
    simulated::setDelays(3);
    simulated::takeFindings();
  }
  void TearDown() override { EXPECT_EQ(simulated::takeFindings(), std::vector<std::string>{}); }

  static std::vector<std::shared_ptr<Peers>> join(int processes) {
    static int joined = 0;
    const std::string name = "accelerators" + std::to_string(joined++);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(freePort()).c_str(), 1);
    std::vector<std::shared_ptr<Peers>> peers(static_cast<size_t>(processes));
    std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups(peers.size());
    forEachProcess(processes, [&](int p) { groups[p] = connectProcesses(name, p, processes); });
    for (int p = 0; p < processes; ++p) {
      const std::string own = name + "/" + std::to_string(p);
      c10d::register_process_group(own, groups[p]);
      peers[p] = Peers::join(own, p, processes);
    }
    return peers;
  }
};

/// A product in one process, which another one gives back; rings of two frames between.
Program twoStages(int32_t micro_batches) {
  Program p(micro_batches, /*frames=*/2);
  exe::Executable& exe = p.executable;
  exe.stage_processes = 2;
  const int32_t received = p.group(exe::GroupKind::kStash, 2, "received");
  exe.groups[p.values].worker = 0;
  exe.groups[received].worker = 1;
  const int32_t in = p.input(f32({4, 4})), product = p.value(f32({4, 4})), small = p.value(f32({4, 1}));
  const int32_t got = p.slot(received, f32({4, 4})), got_small = p.slot(received, f32({4, 1}));
  exe.segments.resize(2);
  exe.segments[1].direction = exe::Direction::kForward;
  exe.segments.push_back({1, exe::Direction::kForward, "in/fwd/1", {}});
  exe.segments.push_back({1, exe::Direction::kForward, "out/fwd/1", {}});
  p.op("aten::mm", {Arg::id(in), Arg::id(in)}, {product});
  p.op("aten::sum.dim_IntList", {Arg::id(product), Arg::intList({1}), Arg::boolean(true), Arg::none()}, {small});
  p.op("abele::send", {Arg::idList({product, small}), Arg::integer(1), Arg::integer(0)}, {}, 3);
  p.op("abele::receive", {Arg::idList({got, got_small}), Arg::integer(0), Arg::integer(0)}, {}, 2).writes = {got,
                                                                                                             got_small};
  const int32_t result = p.slot(received, f32({4, 4}));
  p.op("aten::add.Tensor", {Arg::id(got), Arg::id(got_small), Arg::integer(1)}, {result}, 1);
  p.op("abele::emit", {Arg::id(p.output(f32({4, 4}))), Arg::id(result)}, {}, 1);
  exe.workers.assign(4, {});
  exe.workers[1] = {.device = 1, .actions = {}, .space = 1, .process = 1};
  exe.workers[2] = {.device = 1, .actions = {}, .space = 1, .from = 0, .process = 1};
  exe.workers[3] = {.device = 0, .actions = {}, .space = 0, .to = 1, .process = 0};
  const auto frameIsFree = [&](exe::Action& action, int32_t user, int32_t k) {
    if (k >= 2) action.waits.push_back({user, k - 1});
  };
  for (int32_t k = 0; k < micro_batches; ++k) {
    frameIsFree(exe.workers[0].actions.emplace_back(exe::Action{0, k, {}}), 3, k);
    exe.workers[3].actions.push_back({3, k, {{0, k + 1}}});
    frameIsFree(exe.workers[2].actions.emplace_back(exe::Action{2, k, {{3, k + 1}}}), 1, k);
    exe.workers[1].actions.push_back({1, k, {{2, k + 1}}});
  }
  return p;
}

TEST_F(Processes, StagesHandOverThroughTheHostAndAllHaveTheResults) {
  constexpr int32_t kMicroBatches = 8;
  const Program p = twoStages(kMicroBatches);
  const auto peers = join(2);
  // A device of each; both processes on one; the second stage on the host.
  for (const char* devices : {"simulated:0,simulated:1", "simulated:2,simulated:2", "simulated:3,cpu"}) {
    SCOPED_TRACE(devices);
    std::vector<at::Tensor> inputs;
    for (int step = 0; step < 4; ++step) inputs.push_back(at::randn({4 * kMicroBatches, 4}));
    forEachProcess(2, [&](int process) {
      const auto backend =
          makeBackend("accelerator", p.executable,
                      {.stage_process = process, .peers = peers[static_cast<size_t>(process)], .accelerator = devices});
      Runtime runtime(p.executable, *backend, process);
      for (const at::Tensor& x : inputs) {
        std::vector<at::Tensor> results;
        for (int k = 0; k < kMicroBatches; ++k) results.push_back(at::empty({4, 4}));
        backend->bindInputs({x});
        backend->bindOutputs({results});
        runtime.run();
        for (int k = 0; k < kMicroBatches; ++k) {
          const at::Tensor part = x.narrow(0, 4 * k, 4), product = at::mm(part, part);
          EXPECT_TRUE(sameBits(results[static_cast<size_t>(k)], product + product.sum(1, /*keepdim=*/true)));
        }
      }
    });
  }
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
    Runtime runtime(p.executable, *backend, 0);
    for (int step = 0; step < 3; ++step) {
      backend->bindInputs({inputs[i]});
      backend->bindOutputs({});
      runtime.run();
    }
    EXPECT_TRUE(sameBits(backend->value(0), expected));
  });
}

}  // namespace
}  // namespace abele::runtime::testing
