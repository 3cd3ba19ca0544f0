// `abele env` of a C++ installation: describes this machine, and says whether a pipeline trains here.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <torch/nn/module.h>

#include "abele/abele.h"
#include "output.h"

namespace {

struct Net : torch::nn::Module {
  at::Tensor first = register_parameter("first", at::ones({4, 4})),
             second = register_parameter("second", at::ones({2, 4}));
};

// Trains two stages on two devices for one step.
void train() {
  Net net;
  const auto forward = [&](at::Tensor x, at::Tensor target) {
    abele::beginBlock("first", 0);
    const at::Tensor hidden = at::linear(x, net.first);
    abele::beginBlock("second", 1);
    return abele::identityLoss(at::mse_loss(at::linear(hidden, net.second), target));
  };
  abele::Options options;
  options.Training().gradientAccumulation(2);
  abele::TrainingModel step = abele::trainingModel(net, forward, options, abele::optim::SGD{.lr = 0.01});
  const at::Tensor before = net.first.detach().clone();
  step(at::ones({4, 4}), at::ones({4, 2}));
  step.copyWeightsToHost();
  if (at::equal(before, net.first)) throw std::runtime_error("a step changed no weight");
}

void print(const std::string& name, const std::string& value) {
  std::printf("%-13s %s\n", name.c_str(), value.c_str());
}

// Measures the links between the processes of a launcher, or between two of this host.
int measure() {
  if (std::getenv("WORLD_SIZE") == nullptr && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string poprun = self.parent_path() / "poprun";
    ::execl(poprun.c_str(), "poprun", "--num-instances", "2", self.c_str(), "--measure", nullptr);
    std::fprintf(stderr, "cannot start %s\n", poprun.c_str());
    return 1;
  }
  try {
    abele::measureLinks();
  } catch (const abele::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--help") {
    std::puts(
        "Usage: abele env [--measure]\nSays what there is on this machine; status 1 where a small pipeline does not "
        "train.\n--measure: measures the links between processes and accelerators instead, and writes the machine "
        "file\nthat compilations read.");
    return 0;
  }
  if (argc == 2 && std::string(argv[1]) == "--measure") return measure();
  if (argc > 1) {
    const abele::UserError refused(
        abele::ErrorCode::E0901, {.what = std::string("abele env takes no ") + argv[1], .remedy = "abele env --help"});
    std::fprintf(stderr, "%s\n", refused.what());
    return 1;
  }
  for (const abele::EnvironmentRow& row : abele::environment()) print(row.name, row.value);
  try {
    train();
    print("works", "a pipeline of two stages trains");
  } catch (const std::exception& error) {
    print("FAILS", std::string("a pipeline of two stages: ") + error.what());
    return statusOfWritten(1);
  }
  return statusOfWritten(0);
}
