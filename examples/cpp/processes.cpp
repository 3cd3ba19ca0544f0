// One training in several processes, without Python. A launcher starts the program once for each process, for instance
//   torchrun --no-python --nproc-per-node 2 build/dev/examples/processes
// Each process takes its own rows of every batch; the weights are the same everywhere, bit for bit, and equal to those
// of one process with as many replicas.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>

namespace {

constexpr int64_t kReplicas = 2;  // of all processes
constexpr int64_t kRows = 8;      // of each replica, in a step
constexpr int kSteps = 5;

/// Weights after some steps. local: which of the replicas train here.
std::vector<at::Tensor> train(const abele::Options& options, int64_t first, int64_t local) {
  torch::manual_seed(0);
  torch::nn::Linear net(4, 1);
  auto model = abele::trainingModel(
      net, [&](at::Tensor x, at::Tensor y) { return torch::mse_loss(net(x), y); }, options,
      abele::optim::SGD{.lr = 0.05});
  torch::manual_seed(1);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = torch::randn({kReplicas * kRows, 4}), y = x.sum(1, /*keepdim=*/true);
    model(x.narrow(0, first * kRows, local * kRows), y.narrow(0, first * kRows, local * kRows));
  }
  model.copyWeightsToHost();
  return {net->weight.detach(), net->bias.detach()};
}

}  // namespace

int main() {
  const abele::profiling::Channel channel("processes");
  abele::Options options;
  options.threadsPerDevice(1);
  abele::joinProcesses(options);
  const int64_t process = options.Distributed().distributed_process_id();
  const int64_t processes = options.Distributed().num_distributed_processes();
  const int64_t local = kReplicas / processes;
  options.replicationFactor(local);
  const std::vector<at::Tensor> weights = channel.instrument("train", train)(options, process * local, local);

  abele::Options alone;
  alone.threadsPerDevice(1).replicationFactor(kReplicas);
  const std::vector<at::Tensor> expected = train(alone, 0, kReplicas);
  const bool is_equal = torch::equal(weights[0], expected[0]) && torch::equal(weights[1], expected[1]);
  std::printf("process %ld of %ld: %s\n", process, processes, is_equal ? "equal to one process" : "other weights");
  return is_equal ? 0 : 1;
}
