// Memory reports and limits of the public C++ API.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace memory_test {

namespace nn = torch::nn;
using abele::test::errorOf;
using at::Tensor;

struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(16, 64));
    second = register_module("second", nn::Linear(64, 2));
  }
  Tensor forward(Tensor x, Tensor y) {
    abele::beginBlock("first", 0);
    x = torch::relu(first(x));
    abele::beginBlock("second", 1);
    return torch::mse_loss(second(x), y);
  }
  nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

abele::Options accumulating() {
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(4);
  return options;
}

const Tensor kX = torch::randn({16, 16}), kY = torch::randn({16, 2});

TEST(Memory, ReportAddsUpAndKnowsTheLimits) {
  abele::Options options = accumulating();
  options.deviceMemoryLimit({{"IPU1", 1 << 20}});
  auto model = abele::trainingModel(Net(), options, abele::optim::Adam{});
  EXPECT_NE(errorOf([&] { model.memoryReport(); }).find("E0705"), std::string::npos);
  model.compile(kX, kY);
  const abele::MemoryReport report = model.memoryReport();
  ASSERT_EQ(report.devices.size(), 2u);
  for (const abele::DeviceMemory& device : report.devices) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : device.by_class) sum += bytes;
    EXPECT_EQ(sum, device.peak_bytes);
  }
  EXPECT_EQ(report.devices[0].by_class.at("weights"), (16 * 64 + 64) * 4);
  EXPECT_FALSE(report.devices[0].limit_bytes);
  EXPECT_EQ(report.devices[1].limit_bytes, 1 << 20);
  EXPECT_EQ(report.devices[1].spareBytes(), (1 << 20) - report.devices[1].peak_bytes);
  EXPECT_NE(report.text.find("device 1"), std::string::npos);
  EXPECT_NE(report.json.find("\"layers\""), std::string::npos);
}

TEST(Memory, LimitsOfSingleDevices) {
  Net net;
  abele::Options small = accumulating();
  small.deviceMemoryLimit({{"IPU0", 1000}});
  {
    auto model = abele::trainingModel(net, small);
    EXPECT_NE(errorOf([&] { model(kX, kY); }).find("E0405 device-memory: out of memory on device 0"),
              std::string::npos);
  }
  abele::Options other = accumulating();
  other.deviceMemoryLimit({{"IPU7", 1000}});  // not a device of this model
  EXPECT_EQ(abele::trainingModel(net, other)(kX, kY).size(), 1u);
}

TEST(Memory, LimitsAreOptionsLikeOthers) {
  abele::Options options;
  options.deviceMemoryLimit({{"IPU0", 100}, {"IPU1", 200}});
  EXPECT_FALSE(options.device_memory_limit());
  EXPECT_EQ(options.device_memory_limits(), (std::map<std::string, int64_t>{{"IPU0", 100}, {"IPU1", 200}}));
  abele::Options again;
  again.fromJson(options.toJson());
  EXPECT_EQ(again.str(), options.str());
  options.deviceMemoryLimit(300);
  EXPECT_EQ(options.device_memory_limit(), 300);
  EXPECT_TRUE(options.device_memory_limits().empty());
  EXPECT_NE(errorOf([&] { options.deviceMemoryLimit({{"GPU0", 1}}); }).find("E0702"), std::string::npos);
  EXPECT_NE(errorOf([&] { options.deviceMemoryLimit({{"IPU0", -1}}); }).find("E0702"), std::string::npos);
  EXPECT_EQ(options.device_memory_limit(), 300);
}

TEST(Memory, SimulationSaysWhatFits) {
  auto model = abele::trainingModel(Net(), accumulating());
  model.compile(kX, kY);
  const std::string costs = model.costs();
  const abele::Simulation free = abele::simulate(costs, {.gradient_accumulation = 4});
  EXPECT_TRUE(free.fits);
  ASSERT_EQ(free.memory.size(), 2u);
  EXPECT_FALSE(free.memory[0].spare_bytes);
  EXPECT_EQ(std::max(free.memory[0].peak_bytes, free.memory[1].peak_bytes), free.peak_bytes);
  const abele::Simulation tight =
      abele::simulate(costs, {.gradient_accumulation = 4, .device_bytes = 1 << 20, .bytes_of_device = {{1, 10}}});
  EXPECT_FALSE(tight.fits);
  EXPECT_EQ(tight.memory[0].spare_bytes, (1 << 20) - tight.memory[0].peak_bytes);
  EXPECT_EQ(tight.memory[1].spare_bytes, 10 - tight.memory[1].peak_bytes);
}

// Two stages share a device. Their frames are reserved, although they are never all in use at once.
TEST(Memory, SimulationCountsReservedFrames) {
  const std::string costs = R"({"stages": [{"forward_ns": 1, "backward_ns": 2, "stash_bytes": 10, "device": 0},
                                           {"forward_ns": 1, "backward_ns": 2, "stash_bytes": 10, "device": 0}]})";
  const abele::Simulation run = abele::simulate(costs, {.gradient_accumulation = 2, .device_bytes = 29});
  ASSERT_EQ(run.memory.size(), 1u);
  EXPECT_EQ(run.memory[0].peak_bytes, 30);
  EXPECT_EQ(run.memory[0].spare_bytes, -1);
  EXPECT_FALSE(run.fits);
  EXPECT_NE(run.json.find(R"("fits": false, "spare_bytes": -1)"), std::string::npos) << run.json;
}

}  // namespace memory_test
