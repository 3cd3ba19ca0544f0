// Training steps of C++ programs: LibTorch's own accumulation (eager) or abele::TrainingModel, on the models of
// bench/support/workloads.py. For bench/cpp.py.
//   abele-train-cpp check WORKLOAD SETUP     SETUP: DxT, devices x threads, or auto (abele::wholeMachine)
//   abele-train-cpp serve WORKLOAD SYSTEM    SYSTEM: eager, or a setup
// check compares a setup's losses bit for bit with those of eager steps with the threads of one device. It uses SGD,
// which LibTorch and Python compute alike; LibTorch's Adam and AdamW round differently. serve reads lines "FIRST STEPS"
// and trains that many steps for each. Both answer in lines of JSON.
#include <abele/abele.h>
#include <torch/torch.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace nn = torch::nn;
using at::Tensor;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMicroBatches = 8, kDistinctBatches = 4, kCheckedSteps = 3;

/// A chain of parts that ends in the mean cross entropy.
struct Net : nn::Module {
  std::vector<std::function<Tensor(Tensor)>> parts;

  template <class M>
  M own(M module) {
    return register_module("m" + std::to_string(children().size()), module);
  }
  template <class M>
  void add(M module) {
    parts.push_back([m = own(module)](Tensor x) mutable { return m->forward(x); });
  }
  Tensor loss(Tensor x, const Tensor& target) {
    for (auto& part : parts) x = part(x);
    return torch::cross_entropy_loss(x.flatten(0, -2), target.flatten());
  }
};

nn::LayerNorm layerNorm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

void addEmbedding(Net& net, int64_t vocabulary, int64_t dim, int64_t length) {
  auto token = net.own(nn::Embedding(vocabulary, dim));
  auto norm = net.own(layerNorm(dim));
  Tensor position = net.register_parameter("position", torch::randn({length, dim}) * 0.02);
  net.parts.push_back([=](Tensor x) mutable { return norm->forward(token->forward(x) + position); });
}

/// Normalises before its halves in a decoder, after them in an encoder.
void addTransformerLayer(Net& net, int64_t dim, int64_t heads, bool decoder) {
  auto inward = net.own(nn::Linear(dim, 3 * dim)), outward = net.own(nn::Linear(dim, dim));
  auto up = net.own(nn::Linear(dim, 4 * dim)), down = net.own(nn::Linear(4 * dim, dim));
  auto norm1 = net.own(layerNorm(dim)), norm2 = net.own(layerNorm(dim));
  auto attend = [=](const Tensor& x) mutable {
    const int64_t batch = x.size(0), length = x.size(1);
    const auto qkv = inward->forward(x).view({batch, length, 3, heads, dim / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, decoder);
    return outward->forward(mixed.transpose(1, 2).reshape({batch, length, dim}));
  };
  auto feed = [=](const Tensor& x) mutable { return down->forward(at::gelu(up->forward(x))); };
  net.parts.push_back([=](Tensor x) mutable {
    if (decoder) {
      x = x + attend(norm1->forward(x));
      return x + feed(norm2->forward(x));
    }
    x = norm1->forward(x + attend(x));
    return norm2->forward(x + feed(x));
  });
}

nn::Conv2d convolution(int64_t from, int64_t to, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
}

void addResidualBlock(Net& net, int64_t from, int64_t to, int64_t stride) {
  auto conv1 = net.own(convolution(from, to, 3, stride)), conv2 = net.own(convolution(to, to, 3, 1));
  auto norm1 = net.own(nn::BatchNorm2d(to)), norm2 = net.own(nn::BatchNorm2d(to));
  nn::Conv2d conv3{nullptr};
  nn::BatchNorm2d norm3{nullptr};
  if (stride != 1 || from != to) {
    conv3 = net.own(convolution(from, to, 1, stride));
    norm3 = net.own(nn::BatchNorm2d(to));
  }
  net.parts.push_back([=](Tensor x) mutable {
    const Tensor y = norm2->forward(conv2->forward(torch::relu(norm1->forward(conv1->forward(x)))));
    return torch::relu(y + (conv3 ? norm3->forward(conv3->forward(x)) : x));
  });
}

void addResidualCell(Net& net, int64_t dim) {
  auto norm = net.own(layerNorm(dim));
  auto linear = net.own(nn::Linear(dim, dim));
  net.parts.push_back([=](Tensor x) mutable { return x + linear->forward(at::gelu(norm->forward(x))); });
}

void makeBert(Net& net) {
  addEmbedding(net, 8192, 256, 128);
  for (int layer = 0; layer < 4; ++layer) addTransformerLayer(net, 256, 4, /*decoder=*/false);
  auto pool = net.own(nn::Linear(256, 256)), classify = net.own(nn::Linear(256, 16));
  net.parts.push_back([=](Tensor x) mutable { return classify->forward(torch::tanh(pool->forward(x.select(1, 0)))); });
}

void makeGpt(Net& net) {
  addEmbedding(net, 8192, 384, 128);
  for (int layer = 0; layer < 6; ++layer) addTransformerLayer(net, 384, 6, /*decoder=*/true);
  net.add(layerNorm(384));
  net.add(nn::Linear(nn::LinearOptions(384, 8192).bias(false)));
}

void makeResnet(Net& net) {
  net.add(convolution(3, 64, 7, 2));
  net.add(nn::BatchNorm2d(64));
  net.parts.emplace_back([](Tensor x) { return torch::max_pool2d(torch::relu(x), 3, 2, 1); });
  int64_t channels = 64;
  for (const auto& [wider, stride] : {std::pair<int64_t, int64_t>{64, 1}, {128, 2}, {256, 2}, {512, 2}}) {
    addResidualBlock(net, channels, wider, stride);
    addResidualBlock(net, wider, wider, 1);
    channels = wider;
  }
  net.parts.emplace_back([](Tensor x) { return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1); });
  net.add(nn::Linear(512, 100));
}

void makeDeepNarrow(Net& net) {
  for (int cell = 0; cell < 64; ++cell) addResidualCell(net, 128);
  net.add(nn::Linear(128, 10));
}

void makeLstm(Net& net) {
  net.add(nn::Embedding(2048, 256));
  net.add(nn::Linear(256, 1024));
  net.parts.emplace_back([](Tensor x) { return torch::relu(x); });
  net.add(nn::Linear(1024, 256));
  for (int layer = 0; layer < 2; ++layer)
    net.parts.push_back([m = net.own(nn::LSTM(nn::LSTMOptions(256, 256).batch_first(true)))](Tensor x) mutable {
      return std::get<0>(m->forward(x));
    });
  net.add(nn::Linear(256, 2048));
}

std::vector<Tensor> sequences(int64_t n, int64_t vocabulary, int64_t length) {
  const Tensor tokens = torch::randint(vocabulary, {n, length + 1}, at::kLong);
  return {tokens.slice(1, 0, length).contiguous(), tokens.slice(1, 1).contiguous()};
}

enum class Update { kSGD, kAdam, kAdamW };

struct Workload {
  const char* name;
  std::function<void(Net&)> make;
  std::function<std::vector<Tensor>(int64_t n)> sample;
  Update update;
  int64_t micro_batch;
};

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = {
      {"bert-mini", makeBert,
       [](int64_t n) {
         return std::vector<Tensor>{torch::randint(8192, {n, 128}, at::kLong), torch::randint(16, {n}, at::kLong)};
       },
       Update::kAdamW, 4},
      {"gpt-small", makeGpt, [](int64_t n) { return sequences(n, 8192, 128); }, Update::kAdamW, 2},
      {"resnet-small", makeResnet,
       [](int64_t n) { return std::vector<Tensor>{torch::randn({n, 3, 64, 64}), torch::randint(100, {n}, at::kLong)}; },
       Update::kSGD, 8},
      {"deep-narrow", makeDeepNarrow,
       [](int64_t n) { return std::vector<Tensor>{torch::randn({n, 128}), torch::randint(10, {n}, at::kLong)}; },
       Update::kAdam, 16},
      {"lstm", makeLstm, [](int64_t n) { return sequences(n, 2048, 64); }, Update::kAdamW, 8}};
  return all;
}

std::shared_ptr<Net> makeNet(const Workload& workload) {
  torch::manual_seed(1234);
  auto net = std::make_shared<Net>();
  workload.make(*net);
  return net;
}

std::unique_ptr<torch::optim::Optimizer> makeOptimizer(Update update, const std::vector<Tensor>& parameters) {
  using namespace torch::optim;
  if (update == Update::kAdam) return std::make_unique<Adam>(parameters, AdamOptions(1e-4));
  if (update == Update::kAdamW) return std::make_unique<AdamW>(parameters, AdamWOptions(1e-4));
  return std::make_unique<SGD>(parameters, SGDOptions(0.002).momentum(0.9));
}

/// Trains one workload. Losses: one a micro-batch.
struct System {
  virtual ~System() = default;
  virtual Tensor step(const std::vector<Tensor>& batch) = 0;
};

struct Eager final : System {
  Eager(const Workload& work, Update update)
      : workload(work), net(makeNet(work)), optimizer(makeOptimizer(update, net->parameters())) {}
  Tensor step(const std::vector<Tensor>& batch) override {
    optimizer->zero_grad();
    std::vector<Tensor> losses;
    const auto xs = batch[0].split(workload.micro_batch), targets = batch[1].split(workload.micro_batch);
    for (size_t k = 0; k < xs.size(); ++k) {
      const Tensor loss = net->loss(xs[k], targets[k]);
      (loss / kMicroBatches).backward();
      losses.push_back(loss.detach());
    }
    optimizer->step();
    return torch::stack(losses);
  }
  const Workload& workload;
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

abele::Options optionsOf(const std::string& setup) {
  abele::Options options;
  options.outputMode(abele::OutputMode::kAll).Training().gradientAccumulation(kMicroBatches);
  if (setup == "auto") return options.setExecutionStrategy(abele::wholeMachine());
  const size_t x = setup.find('x');
  return options.setExecutionStrategy(abele::autoSplit(std::stoi(setup.substr(0, x))))
      .threadsPerDevice(std::stoi(setup.substr(x + 1)));
}

struct Compiled final : System {
  Compiled(const Workload& work, Update update, const std::string& setup)
      : net(makeNet(work)),
        optimizer(makeOptimizer(update, net->parameters())),
        model(abele::trainingModel(
            net, [&own = *net](Tensor x, Tensor target) { return abele::identityLoss(own.loss(x, target)); },
            optionsOf(setup), *optimizer)) {}
  Tensor step(const std::vector<Tensor>& batch) override { return model(batch[0], batch[1])[0].flatten(); }
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  abele::TrainingModel model;
};

std::vector<Tensor> lossesOf(System& system, const std::vector<std::vector<Tensor>>& batches) {
  std::vector<Tensor> losses;
  for (int64_t step = 0; step < kCheckedSteps; ++step) losses.push_back(system.step(batches[step]).clone());
  return losses;
}

/// Threads of each device: what the name says, or what was taken.
int threadsOf(const std::string& setup, const abele::TrainingModel& model, std::string& taken) {
  taken = setup;
  if (setup == "auto") {
    std::istringstream lines(abele::explain(model));
    int devices = 0, threads = 0;
    for (std::string line; std::getline(lines, line);)
      if (line.ends_with(", taken") && std::sscanf(line.c_str(), "%d device%*[s] of %d", &devices, &threads) < 2)
        std::sscanf(line.c_str(), "%d device of %d", &devices, &threads);
    taken = std::to_string(devices) + "x" + std::to_string(threads);
  }
  return std::stoi(taken.substr(taken.find('x') + 1));
}

/// The distinct batches of a run.
std::vector<std::vector<Tensor>> batchesOf(const Workload& workload) {
  torch::manual_seed(99);
  std::vector<std::vector<Tensor>> batches;
  for (int64_t i = 0; i < kDistinctBatches; ++i)
    batches.push_back(workload.sample(kMicroBatches * workload.micro_batch));
  return batches;
}

void check(const Workload& workload, const std::string& setup) {
  const auto batches = batchesOf(workload);
  Compiled ours(workload, Update::kSGD, setup);
  const std::vector<Tensor> losses = lossesOf(ours, batches);
  std::string taken;
  at::set_num_threads(threadsOf(setup, ours.model, taken));
  Eager eager(workload, Update::kSGD);
  const std::vector<Tensor> expected = lossesOf(eager, batches);
  const bool same = std::equal(losses.begin(), losses.end(), expected.begin(),
                               [](const Tensor& a, const Tensor& b) { return torch::equal(a, b); });
  std::cout << "{\"same_losses\": " << (same ? "true" : "false") << ", \"taken\": \"" << taken << "\"}\n";
}

double secondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }
double processorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void serve(const Workload& workload, const std::string& name) {
  const auto batches = batchesOf(workload);
  const Clock::time_point begin = Clock::now();
  std::unique_ptr<System> system;
  const Compiled* compiled = nullptr;
  if (name == "eager") {
    system = std::make_unique<Eager>(workload, workload.update);
  } else {
    auto ours = std::make_unique<Compiled>(workload, workload.update, name);
    compiled = ours.get();
    system = std::move(ours);
  }
  std::cout << "{\"s\": " << secondsSince(begin) << "}" << std::endl;
  for (int first = 0, steps = 0; std::cin >> first >> steps;) {
    const double processor = processorSeconds();
    const Clock::time_point start = Clock::now();
    for (int step = first; step < first + steps; ++step)
      system->step(batches[static_cast<size_t>(step) % batches.size()]);
    std::cout << "{\"s\": " << secondsSince(start) << ", \"cpu_s\": " << processorSeconds() - processor
              << ", \"losses\": []}" << std::endl;
  }
  std::string taken;
  if (compiled != nullptr) threadsOf(name, compiled->model, taken);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::cout << "{\"peak_bytes\": " << usage.ru_maxrss * 1024 << ", \"heap_allocations\": null, \"placement\": \""
            << taken << "\"}\n";
}

void run(const std::string& what, const std::string& name, const std::string& system) {
  at::set_num_threads(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  const auto found =
      std::find_if(workloads().begin(), workloads().end(), [&](const Workload& w) { return w.name == name; });
  if (found == workloads().end()) throw std::runtime_error("no workload " + name);
  if (what != "check" && what != "serve") throw std::runtime_error("check or serve, not " + what);
  what == "check" ? check(*found, system) : serve(*found, system);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::runtime_error("check|serve WORKLOAD SYSTEM");
    run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "abele-train-cpp: " << error.what() << "\n";
    return 1;
  }
}
