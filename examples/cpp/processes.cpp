// One training in several processes, without Python. A launcher starts the program once for each process, for instance
//   torchrun --no-python --nproc-per-node 2 build/dev/examples/processes
// Each process takes its own rows of every batch. All have the same weights, bit for bit, as one process with the
// same number of replicas. A signal to any of them (SIGTERM, Ctrl-C) ends all after the same step.
//   processes [STEPS]
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

constexpr int64_t kReplicas = 2;  // in all processes together
constexpr int64_t kRows = 8;      // for each replica, in a step

struct Trained {
  std::vector<at::Tensor> weights;
  int64_t steps = 0;
};

/// local: how many of the replicas train here, from `first` on. ends: asked before each step.
Trained train(const abele::Options& options, int64_t first, int64_t local, const std::function<bool(int64_t)>& ends) {
  torch::manual_seed(0);
  torch::nn::Linear net(4, 1);
  auto model = abele::trainingModel(
      net, [&](at::Tensor x, at::Tensor y) { return torch::mse_loss(net(x), y); }, options,
      abele::optim::SGD{.lr = 0.05});
  torch::manual_seed(1);
  int64_t step = 0;
  for (; !ends(step); ++step) {
    const at::Tensor x = torch::randn({kReplicas * kRows, 4}), y = x.sum(1, /*keepdim=*/true);
    model(x.narrow(0, first * kRows, local * kRows), y.narrow(0, first * kRows, local * kRows));
  }
  // The first call compiles; a signal before it leaves the weights as they are.
  if (step > 0)
    model.copyWeightsToHost();
  return {.weights = {net->weight.detach(), net->bias.detach()}, .steps = step};
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 5;
  if (steps < 1) {
    std::fprintf(stderr, "processes [STEPS]: 1 or more\n");
    return 2;
  }
  const abele::StopOnSignal stop;
  const abele::profiling::Channel channel("processes");
  abele::Options options;
  options.threadsPerDevice(1);
  abele::joinProcesses(options);
  const int64_t process = options.Distributed().distributed_process_id();
  const int64_t processes = options.Distributed().num_distributed_processes();
  const int64_t local = kReplicas / processes;
  options.replicationFactor(local);
  std::printf("process %ld of %ld trains\n", process, processes);
  std::fflush(stdout);
  const auto ends = [&](int64_t step) { return stop.agreed() || step == steps; };
  const Trained here = channel.instrument("train", train)(options, process * local, local, ends);

  abele::Options alone;
  alone.threadsPerDevice(1).replicationFactor(kReplicas);
  const Trained expected = train(alone, 0, kReplicas, [&](int64_t step) { return step == here.steps; });
  const bool is_equal =
      torch::equal(here.weights[0], expected.weights[0]) && torch::equal(here.weights[1], expected.weights[1]);
  std::printf("process %ld of %ld: %s after %ld steps\n", process, processes,
              is_equal ? "equal to one process" : "other weights", here.steps);
  return is_equal ? 0 : 1;
}
