// Goes on with a program that Python saved, or saves one for Python; runs steps and prints each loss with all its bits,
// and the sum of every parameter and buffer.
//   continue_training alone|module FILE STEPS ROWS [LR]      loads, without or with a module; LR: a new learning rate
//   continue_training save FILE STEPS ROWS LR                saves after one step; LR: of the steps after that
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace {

using Batch = std::map<std::string, at::Tensor>;

struct NetImpl : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const Batch& batch, double scale) {
    abele::Block::start("encoder", 0);
    const at::Tensor hidden = torch::dropout(torch::relu(norm(encoder(batch.at("x")))), 0.25, true);
    abele::Block::start("decoder", 1);
    const at::Tensor out = decoder(hidden) * scale;
    return {out, abele::identityLoss(torch::mse_loss(out, batch.at("target")), abele::Reduction::kNone)};
  }
  torch::nn::Linear encoder = register_module("encoder", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear decoder = register_module("decoder", torch::nn::Linear(8, 3));
};
TORCH_MODULE(Net);

abele::Options options() {
  abele::Options options;
  options.threadsPerDevice(1).randomSeed(3).setExecutionStrategy(abele::ShardedExecution());
  return options;
}

void setLearningRate(abele::TrainingModel& model, double lr) {
  abele::optim::Optimizer changed = model.optimizer();
  std::visit(
      [lr](auto& groups) {
        for (auto& group : groups) group.lr = lr;
      },
      changed.groups);
  model.setOptimizer(changed);
}

/// call: one step, whose last result is the loss.
template <class Call>
void train(abele::TrainingModel& model, int64_t steps, int64_t rows, Call call) {
  torch::manual_seed(7);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor x = torch::randn({rows, 6}), target = torch::randn({rows, 3});
    std::printf("%a\n", call(x, target).template item<float>());
  }
  for (const auto& [name, tensor] : model.stateDict())
    std::printf("%s %a\n", name.c_str(), tensor.to(at::kDouble).sum().template item<double>());
}

void run(const std::string& command, const std::string& file, int64_t steps, int64_t rows, const char* lr) {
  if (command == "save") {
    torch::manual_seed(1);
    Net net;
    auto model = abele::trainingModel(net, options(), abele::optim::AdamW{.lr = 0.01});
    const auto call = [&](const at::Tensor& x, const at::Tensor& target) {
      return model(Batch{{"x", x}, {"target", target}}, 0.5).back();
    };
    call(torch::ones({rows, 6}), torch::ones({rows, 3}));
    model.save(file);
    setLearningRate(model, std::atof(lr));
    return train(model, steps, rows, call);
  }
  Net net;
  auto model = command == "module" ? abele::loadTrainingModel(file, *net)
                                   : abele::loadTrainingModel(file);
  if (lr != nullptr) setLearningRate(model, std::atof(lr));
  // Python's dict has the target first; a map of C++ is sorted by key.
  train(model, steps, rows, [&](const at::Tensor& x, const at::Tensor& target) {
    return model.call<std::pair<at::Tensor, at::Tensor>>(Batch{{"x", x}, {"a_target", target}}, 2).second;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  try {
    run(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argc > 5 ? argv[5] : nullptr);
  } catch (const abele::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
