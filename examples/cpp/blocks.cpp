// One model, three ways to run it: on one device, as a pipeline of two stages, and one stage at a time.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

namespace {

struct Net : torch::nn::Module {
  Net()
      : lower(register_module("lower", torch::nn::Linear(8, 16))),
        upper(register_module("upper", torch::nn::Linear(16, 4))) {}

  /// Blocks say which part is which. They do nothing when forward runs natively.
  at::Tensor forward(const at::Tensor& x) {
    abele::beginBlock("lower");
    const at::Tensor hidden = torch::relu(lower(x));
    abele::beginBlock("upper");
    return upper(hidden);
  }

  torch::nn::Linear lower, upper;
};

}  // namespace

int main() {
  torch::manual_seed(0);
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::randn({12, 8});
  at::set_num_threads(1);
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (int64_t k = 0; k < 4; ++k) rows.push_back(net->forward(x.narrow(0, 3 * k, 3)));
  const at::Tensor expected = torch::cat(rows);

  const std::pair<const char*, abele::ExecutionStrategy> strategies[] = {
      {"one stage", abele::PipelinedExecution{abele::Stage{"lower", "upper"}}},
      {"pipeline", abele::PipelinedExecution{abele::Stage("lower").ipu(0), abele::Stage("upper").ipu(1)}},
      {"sharded", abele::ShardedExecution{abele::Stage("lower").ipu(0), abele::Stage("upper").ipu(1)}},
  };
  for (const auto& [name, strategy] : strategies) {
    abele::Options options;
    options.deviceIterations(4).threadsPerDevice(1).setExecutionStrategy(strategy);
    auto model = abele::inferenceModel(net, [&](at::Tensor rows) { return net->forward(rows); }, options);
    const bool equal = torch::equal(model(x)[0], expected);
    std::printf("%s: %s\n%s", name, equal ? "equal to eager" : "DIFFERENT", model.report().c_str());
    if (!equal) return 1;
  }
}
