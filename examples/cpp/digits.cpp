// Trains a small network on handwritten digits as a pipeline of four stages: the C++ twin of digits.py. Both print the
// same losses, digit for digit.
//
//   digits [--model vit|resnet|both] [--epochs n] [--steps n] [--seed n] [--print-losses] [--no-eager] [--data file]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "digits_data.h"
#include "digits_models.h"

namespace {

constexpr int64_t kMicroBatch = 8, kMicroBatches = 8;
constexpr int64_t kTestBatch = 45, kTestBatches = 8;
constexpr double kWeightDecay = 0.05;

struct Arguments {
  std::string model = "both", data = DIGITS_FILE;
  int64_t epochs = 0, steps = 0;
  uint64_t seed = 1;
  bool print_losses = false, eager = true;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::runtime_error(flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--model")
      arguments.model = value();
    else if (flag == "--epochs")
      arguments.epochs = std::stoll(value());
    else if (flag == "--steps")
      arguments.steps = std::stoll(value());
    else if (flag == "--seed")
      arguments.seed = std::stoull(value());
    else if (flag == "--print-losses")
      arguments.print_losses = true;
    else if (flag == "--no-eager")
      arguments.eager = false;
    else if (flag == "--data")
      arguments.data = value();
    else
      throw std::runtime_error("unknown argument " + flag);
  }
  return arguments;
}

struct Recipe {
  std::string name;
  std::shared_ptr<digits::Network> (*network)();
  int64_t epochs;
  double learning_rate;
};

const Recipe kRecipes[] = {
    {"vit", [] { return std::shared_ptr<digits::Network>(std::make_shared<digits::VisionTransformer>()); }, 16, 3e-3},
    {"resnet", [] { return std::shared_ptr<digits::Network>(std::make_shared<digits::ResNet>()); }, 6, 3e-3},
};

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.size() > 1) values.erase(values.begin());  // the first one warms up
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The same training step by LibTorch alone, on a network of the same seed.
class Eager {
 public:
  Eager(const Recipe& recipe, uint64_t seed, int threads) : threads_(threads) {
    torch::manual_seed(seed);
    network_ = recipe.network();
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        network_->parameters(), torch::optim::AdamWOptions(recipe.learning_rate).weight_decay(kWeightDecay));
  }

  torch::Tensor operator()(const torch::Tensor& images, const torch::Tensor& labels) {
    const int before = torch::get_num_threads();
    torch::set_num_threads(threads_);
    const auto begin = std::chrono::steady_clock::now();
    optimizer_->zero_grad();
    std::vector<torch::Tensor> losses;
    for (int64_t row = 0; row < images.size(0); row += kMicroBatch) {
      const auto loss = network_->losses(images.narrow(0, row, kMicroBatch), labels.narrow(0, row, kMicroBatch))[1];
      (loss / kMicroBatches).backward();
      losses.push_back(loss.detach());
    }
    optimizer_->step();
    seconds_.push_back(secondsSince(begin));
    torch::set_num_threads(before);
    return torch::stack(losses);
  }

  int threads() const { return threads_; }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  int threads_;
  std::shared_ptr<digits::Network> network_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::vector<double> seconds_;
};

abele::Options trainingOptions() {
  abele::Options options;
  options.Training().gradientAccumulation(kMicroBatches);
  options.outputMode(abele::OutputMode::kAll);
  return options;
}

/// One network, compiled, with all that an epoch needs.
class Training {
 public:
  Training(const Recipe& recipe, const Arguments& arguments, const digits::Part& data)
      : recipe_(recipe),
        arguments_(arguments),
        data_(data),
        shuffled_(data.labels.size(0), arguments.seed),
        network_(makeNetwork()),
        loader_(trainingOptions(), [this](int64_t i) { return sample(i); }, data.labels.size(0),
                {.batch_size = kMicroBatch}),
        model_(abele::trainingModel(
            network_, [this](at::Tensor images, at::Tensor labels) { return network_->losses(images, labels); },
            trainingOptions(), optimizer(0))) {
    if (!arguments.eager) return;
    eager_.emplace_back(recipe, arguments.seed, 1);
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (cores > 1) eager_.emplace_back(recipe, arguments.seed, cores);
  }

  /// False when arguments asked to stop before the end.
  bool run() {
    for (int64_t number = 0; number < epochs(); ++number) {
      if (!epoch(number)) return false;
      model_.setOptimizer(optimizer(number + 1));
    }
    return true;
  }

  /// Per cent of the held-out digits that are recognised.
  double test(const digits::Part& part) {
    network_->eval();
    auto model = abele::inferenceModel(
        network_, [this](at::Tensor images) { return network_->logits(images); },
        abele::Options().deviceIterations(kTestBatches));
    const int64_t padding = kTestBatch * kTestBatches - part.images.size(0);
    const auto scores = model(torch::cat({part.images, part.images.narrow(0, 0, padding)}))[0];
    const auto right = scores.narrow(0, 0, part.images.size(0)).argmax(1) == part.labels;
    return 100 * right.to(torch::kFloat).mean().item<double>();
  }

  void show() const {
    const double step = median(seconds_);
    std::printf("\n%s\nstep %.2f ms\n", model_.report().c_str(), 1e3 * step);
    for (const Eager& eager : eager_) {
      const double theirs = median(eager.seconds());
      std::printf("step %.2f ms by eager PyTorch of %d threads; ratio %.2f\n", 1e3 * theirs, eager.threads(),
                  step / theirs);
    }
    if (!eager_.empty()) {
      std::printf("largest difference from eager PyTorch's losses in %zu steps: %g\n", eager_[0].seconds().size(),
                  difference_);
    }
  }

 private:
  std::shared_ptr<digits::Network> makeNetwork() const {
    torch::manual_seed(arguments_.seed);
    return recipe_.network();
  }

  int64_t epochs() const { return arguments_.epochs ? arguments_.epochs : recipe_.epochs; }

  /// Falls from the recipe's rate to 0.
  abele::optim::AdamW optimizer(int64_t epoch) const {
    const double share = 1 - epoch / static_cast<double>(epochs());
    return {.lr = recipe_.learning_rate * share, .weight_decay = kWeightDecay};
  }

  std::vector<at::Tensor> sample(int64_t i) const {
    const int64_t index = order_[i];
    return {data_.images[index], data_.labels[index]};
  }

  bool epoch(int64_t number) {
    order_ = shuffled_.next();
    double total = 0;
    int64_t done = 0, right = 0;
    for (const auto& batch : loader_) {
      const auto begin = std::chrono::steady_clock::now();
      const auto results = model_(batch);
      seconds_.push_back(secondsSince(begin));
      if (number == 0) compare(batch, results[1]);
      const double loss = results[1].mean().item<float>();
      if (arguments_.print_losses) std::printf("step %zu loss %.9g\n", seconds_.size() - 1, loss);
      total += loss;
      right += (results[0].argmax(1) == batch[1]).sum().item<int64_t>();
      if (static_cast<int64_t>(seconds_.size()) == arguments_.steps) return false;
      ++done;
    }
    std::fprintf(stderr, "%s epoch %ld/%ld  loss %.4f  accuracy %5.1f %%\n", recipe_.name.c_str(), number + 1, epochs(),
                 total / done, 100.0 * right / (done * kMicroBatch * kMicroBatches));
    return true;
  }

  /// The same step by eager LibTorch. Its own AdamW rounds in another order than Python's, which is ours too.
  void compare(const std::vector<at::Tensor>& batch, const torch::Tensor& losses) {
    for (Eager& eager : eager_) {
      const auto theirs = eager(batch[0], batch[1]);
      if (eager.threads() == 1) difference_ = std::max(difference_, (losses - theirs).abs().max().item<float>());
    }
  }

  Recipe recipe_;
  Arguments arguments_;
  digits::Part data_;
  digits::Shuffled shuffled_;
  std::vector<int64_t> order_;
  std::shared_ptr<digits::Network> network_;
  abele::DataLoader loader_;
  abele::TrainingModel model_;
  std::vector<double> seconds_;
  std::vector<Eager> eager_;
  float difference_ = 0;
};

void train(const Recipe& recipe, const Arguments& arguments, const digits::Split& data) {
  Training training(recipe, arguments, data.train);
  const bool complete = training.run();
  training.show();
  if (complete) std::printf("test accuracy %.1f %%\n", training.test(data.test));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    const digits::Split data = digits::load(arguments.data);
    bool found = false;
    for (const Recipe& recipe : kRecipes) {
      if (arguments.model != "both" && arguments.model != recipe.name) continue;
      train(recipe, arguments, data);
      found = true;
    }
    if (!found) throw std::runtime_error("no model named " + arguments.model);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
