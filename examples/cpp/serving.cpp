// Serves a network from many threads: requests of any number of rows run together in full batches. One request in 50 is
// wrong, and its thread alone hears so. --help says what can be chosen.
#include <torch/torch.h>

#include <abele/abele.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kFeatures = 32, kClasses = 10;
constexpr const char* kHelp = R"(serving [--threads N] [--requests N] [--batch N]
Serves a network from so many threads, in calls of so many rows.
)";

struct Arguments {
  int64_t threads = 8, requests = 400, batch = 32;
  bool help = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] {
      if (i + 1 == argc) throw std::runtime_error(flag + " needs a value");
      return std::stoll(argv[++i]);
    };
    if (flag == "--help")
      arguments.help = true;
    else if (flag == "--threads")
      arguments.threads = value();
    else if (flag == "--requests")
      arguments.requests = value();
    else if (flag == "--batch")
      arguments.batch = value();
    else
      throw std::runtime_error("unknown argument " + flag + "\n" + kHelp);
  }
  return arguments;
}

struct Net : torch::nn::Module {
  Net()
      : lower(register_module("lower", torch::nn::Linear(kFeatures, 64))),
        upper(register_module("upper", torch::nn::Linear(64, kClasses))) {}

  at::Tensor forward(const at::Tensor& x) {
    abele::beginBlock("lower", 0);
    const at::Tensor hidden = torch::relu(lower(x));
    abele::beginBlock("upper", 1);
    return torch::log_softmax(upper(hidden), 1);
  }

  torch::nn::Linear lower, upper;
};

/// Counts of the threads' answers.
struct Seen {
  std::atomic<int64_t> answered{0}, refused{0}, wrong_rows{0};
};

/// Request `number`: some rows of x, more than a batch too. Every caller must get the results of its own rows.
void ask(abele::Server& server, int64_t number, const at::Tensor& x, const at::Tensor& expected, Seen& seen) {
  const int64_t first = number * 7 % 200, rows = 1 + number * 13 % 40;
  if (number % 50 == 49) {
    try {
      server(x.narrow(0, first, rows).narrow(1, 0, 5));
    } catch (const std::exception& error) {
      const std::string said = error.what();
      if (seen.refused++ == 0)
        std::printf("the first wrong request heard: %s\n", said.substr(0, said.find('\n')).c_str());
    }
    return;
  }
  const at::Tensor out = server(x.narrow(0, first, rows))[0];
  if (!torch::allclose(out, expected.narrow(0, first, rows), 1e-5, 1e-6)) ++seen.wrong_rows;
  ++seen.answered;
}

int run(const Arguments& arguments) {
  torch::manual_seed(0);
  const auto net = std::make_shared<Net>();
  net->eval();
  const at::Tensor x = torch::randn({256, kFeatures});
  const at::Tensor expected = [&] {
    const torch::NoGradGuard no_grad;
    return net->forward(x);
  }();

  abele::Options options;
  options.deviceIterations(4);  // micro-batches of a call
  auto model = abele::inferenceModel(net, [net](at::Tensor rows) { return net->forward(rows); }, options);
  model.compile(x.narrow(0, 0, arguments.batch));
  abele::Server server(std::move(model), {.longest_wait = std::chrono::milliseconds(2)});

  Seen seen;
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < arguments.threads; ++i) {
    threads.emplace_back([&] {
      for (int64_t number = next++; number < arguments.requests; number = next++) {
        ask(server, number, x, expected, seen);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.stop();

  const abele::ServerStatistics statistics = server.statistics();
  std::printf("%ld requests have their own rows back, %ld wrong ones an error\n", seen.answered.load(),
              seen.refused.load());
  std::printf("%ld rows in %ld batches; %ld rows only filled\n", statistics.rows, statistics.batches,
              statistics.filling_rows);
  std::printf("time from request to answer: half within %.1f ms, 99 %% within %.1f ms\n", 1e3 * statistics.p50_s,
              1e3 * statistics.p99_s);
  return seen.wrong_rows == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (!arguments.help) return run(arguments);
    std::printf("%s", kHelp);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
