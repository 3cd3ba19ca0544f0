// Processes that are threads of this one, each with its own accelerators, and a program for two of them.
#pragma once

#include <sys/socket.h>

#include <netinet/in.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "../programs.h"
#include "collective/gloo.h"
#include "collective/peers.h"
#include "runtime/runtime.h"
#include "simulated_accelerator/simulated.h"

namespace abele::device::testing {

inline int freePort() {
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

inline void forEachProcess(int processes, const std::function<void(int)>& fn) {
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

  static std::vector<std::shared_ptr<collective::Peers>> join(int processes) {
    static int joined = 0;
    const std::string name = "accelerators" + std::to_string(joined++);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(freePort()).c_str(), 1);
    std::vector<std::shared_ptr<collective::Peers>> peers(static_cast<size_t>(processes));
    std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups(peers.size());
    forEachProcess(processes, [&](int p) { groups[p] = collective::connectProcesses(name, p, processes); });
    for (int p = 0; p < processes; ++p) {
      const std::string own = name + "/" + std::to_string(p);
      c10d::register_process_group(own, groups[p]);
      peers[p] = collective::Peers::join(own, p, processes);
    }
    return peers;
  }

  static constexpr int32_t kMicroBatches = 8;
  /// Both processes run twoStages(kMicroBatches, size), and have the right results.
  static void runSteps(const Program& p, const std::vector<std::shared_ptr<collective::Peers>>& peers, int64_t size,
                       int64_t steps, const std::string& devices) {
    SCOPED_TRACE(devices);
    std::vector<at::Tensor> inputs;
    for (int64_t step = 0; step < steps; ++step) inputs.push_back(at::randn({size * kMicroBatches, size}));
    forEachProcess(2, [&](int process) {
      const auto backend =
          makeBackend("accelerator", p.executable,
                      {.stage_process = process, .peers = peers[static_cast<size_t>(process)], .accelerator = devices});
      runtime::Runtime runtime(p.executable, *backend, process);
      for (const at::Tensor& x : inputs) {
        std::vector<at::Tensor> results;
        for (int k = 0; k < kMicroBatches; ++k) results.push_back(at::empty({size, size}));
        backend->bindInputs({x});
        backend->bindOutputs({results});
        runtime.run();
        for (int k = 0; k < kMicroBatches; ++k) {
          const at::Tensor part = x.narrow(0, size * k, size), product = at::mm(part, part);
          EXPECT_TRUE(sameBits(results[static_cast<size_t>(k)], product + product.sum(1, /*keepdim=*/true)));
        }
      }
    });
  }
};

/// A product in one process, which another one gives back; rings of two frames between. size: rows and columns.
inline Program twoStages(int32_t micro_batches, int64_t size = 4) {
  Program p(micro_batches, /*frames=*/2);
  exe::Executable& exe = p.executable;
  exe.stage_processes = 2;
  const int32_t received = p.group(exe::GroupKind::kStash, 2, "received");
  exe.groups[p.values].worker = 0;
  exe.groups[received].worker = 1;
  const int32_t in = p.input(f32({size, size})), product = p.value(f32({size, size})), small = p.value(f32({size, 1}));
  const int32_t got = p.slot(received, f32({size, size})), got_small = p.slot(received, f32({size, 1}));
  exe.segments.resize(2);
  exe.segments[1].direction = exe::Direction::kForward;
  exe.segments.push_back({1, exe::Direction::kForward, "in/fwd/1", {}});
  exe.segments.push_back({1, exe::Direction::kForward, "out/fwd/1", {}});
  p.op("aten::mm", {Arg::id(in), Arg::id(in)}, {product});
  p.op("aten::sum.dim_IntList", {Arg::id(product), Arg::intList({1}), Arg::boolean(true), Arg::none()}, {small});
  p.op("abele::send", {Arg::idList({product, small}), Arg::integer(1), Arg::integer(0)}, {}, 3);
  p.op("abele::receive", {Arg::idList({got, got_small}), Arg::integer(0), Arg::integer(0)}, {}, 2).writes = {got,
                                                                                                             got_small};
  const int32_t result = p.slot(received, f32({size, size}));
  p.op("aten::add.Tensor", {Arg::id(got), Arg::id(got_small), Arg::integer(1)}, {result}, 1);
  p.op("abele::emit", {Arg::id(p.output(f32({size, size}))), Arg::id(result)}, {}, 1);
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

}  // namespace abele::device::testing
