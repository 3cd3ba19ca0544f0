// Models of C++ programs attach to devices, and the registry shows them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <torch/torch.h>

#include <unistd.h>

#include "abele/abele.h"
#include "registry/attachment.h"

namespace abele {
namespace {

TEST(Attach, ACppProgramIsShownWhileItHasDevices) {
  std::string base = testing::TempDir() + "/abele_attach_XXXXXX";
  ASSERT_NE(::mkdtemp(base.data()), nullptr);
  ::setenv("ABELE_REGISTRY", base.c_str(), 1);
  {
    torch::nn::Linear first(4, 4), second(4, 4);
    torch::nn::Sequential both(first, second);
    Options options;
    // Applies to the whole process, and tests after this one count lines of the log.
    options.threadsPerDevice(1).modelName("net").maxRepeatLogs(std::nullopt);
    auto model = inferenceModel(
        both,
        [=](at::Tensor x) mutable {
          beginBlock("first", {0});
          const at::Tensor h = first(x);
          beginBlock("second", {1});
          return second(h);
        },
        options);
    EXPECT_TRUE(registry::attached().empty());
    model(torch::ones({1, 4}));
    model(torch::ones({1, 4}));
    const std::vector<registry::Attached> all = registry::attached();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].pid, ::getpid());
    EXPECT_EQ(all[0].model, "net");
    EXPECT_EQ(all[0].steps, 2);
    ASSERT_EQ(all[0].devices.size(), 2u);
    EXPECT_GT(all[0].devices[1].busy_ns, 0);
    model.detachFromDevice();
    EXPECT_TRUE(registry::attached().empty());
    model(torch::ones({1, 4}));
    EXPECT_EQ(registry::attached().size(), 1u);
  }
  EXPECT_TRUE(registry::attached().empty());
  ::unsetenv("ABELE_REGISTRY");
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace abele
