// Trains a small GPT on a text, as a pipeline, and lets it write: the C++ twin of gpt.py. Both print the same losses,
// digit for digit, and write the same text.

#include <torch/torch.h>

#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

#include "gpt_model.h"

namespace {

constexpr int64_t kMicroBatch = 2, kMicroBatches = 8;
constexpr int64_t kContext = 128;  // characters that the model sees at once
constexpr const char* kHelp =
    R"(gpt [--text FILE] [--devices 1|2|4] [--steps N] [--prompt TEXT] [--length N] [--seed N] [--print-losses]
Trains a small GPT on a text (the licence of this repository) and lets it write.
)";

struct Arguments {
  std::string text = TEXT_FILE, prompt = "You may ";
  int64_t devices = 2, steps = 700, length = kContext;
  uint64_t seed = 1;
  bool print_losses = false, help = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::runtime_error(flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--help")
      arguments.help = true;
    else if (flag == "--text")
      arguments.text = value();
    else if (flag == "--devices")
      arguments.devices = std::stoll(value());
    else if (flag == "--steps")
      arguments.steps = std::stoll(value());
    else if (flag == "--prompt")
      arguments.prompt = value();
    else if (flag == "--length")
      arguments.length = std::stoll(value());
    else if (flag == "--seed")
      arguments.seed = std::stoull(value());
    else if (flag == "--print-losses")
      arguments.print_losses = true;
    else
      throw std::runtime_error("unknown argument " + flag + "\n" + kHelp);
  }
  return arguments;
}

/// Weights are the module's again afterwards.
void train(const std::shared_ptr<gpt::Model>& net, const gpt::Text& text, const Arguments& arguments) {
  abele::Options options;
  options.threadsPerDevice(1).outputMode(abele::OutputMode::kAll).Training().gradientAccumulation(kMicroBatches);
  auto model = abele::trainingModel(
      net, [&](at::Tensor tokens, at::Tensor targets) { return net->loss(tokens, targets); }, options,
      abele::optim::AdamW{.lr = 3e-3});
  const auto random = at::make_generator<at::CPUGeneratorImpl>(arguments.seed);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < arguments.steps; ++step) {
    const auto [tokens, targets] = text.pieces(kMicroBatch * kMicroBatches, net->sizes.context, random);
    const float loss = model(tokens, targets)[0].mean().item<float>();
    if (arguments.print_losses) {
      std::printf("step %ld loss %.9g\n", step, loss);
    } else if (step % 50 == 0 || step == arguments.steps - 1) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      std::printf("step %4ld  loss %.3f  %5.1f s\n", step, loss, seconds.count());
    }
  }
  std::printf("%s\n", model.report().c_str());
}

void run(const Arguments& arguments) {
  const gpt::Text text(arguments.text);
  const torch::Tensor prompt = text.encode(arguments.prompt);
  torch::manual_seed(arguments.seed);
  const auto net = std::make_shared<gpt::Model>(text.size(), arguments.devices,
                                                gpt::Sizes{.context = std::max(kContext, arguments.length)});
  train(net, text, arguments);

  net->eval();
  const auto writer = std::make_shared<gpt::Writer>(net);
  abele::Options options;
  options.threadsPerDevice(1);
  auto compiled = abele::inferenceModel(
      writer, [&](at::Tensor tokens, at::Tensor position) { return writer->forward(tokens, position); }, options);
  const auto tokens = gpt::write([&](const auto& token, const auto& position) { return compiled(token, position)[0]; },
                                 prompt, arguments.length);
  std::printf("\n%s\n\n", text.decode(tokens).c_str());

  torch::set_num_threads(1);  // as each device has
  gpt::Writer eager(net);
  const auto theirs =
      gpt::write([&](const auto& token, const auto& position) { return eager.forward(token, position); }, prompt,
                 arguments.length);
  std::printf("eager PyTorch writes %s\n", theirs == tokens ? "the same" : "ANOTHER TEXT");
  if (theirs != tokens) throw std::runtime_error("the compiled model and eager PyTorch differ");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.help)
      std::printf("%s", kHelp);
    else
      run(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
