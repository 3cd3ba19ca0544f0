// Events that a model does not see: its process is forked, its weights are freed.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <functional>
#include <memory>
#include <vector>

#include <unistd.h>

#include "../../support/child.h"
#include "../../support/code_of.h"
#include "abele/abele.h"
#include "two_layers.h"

namespace faults_test {

using abele::test::codeOf;
using abele::test::errorOf;
using Net = abele::test::TwoLayers;

abele::Options options() {
  abele::Options made;
  made.threadsPerDevice(1).enforcePipelineMinimum(false);
  return made;
}

std::unique_ptr<abele::TrainingModel> train(Net net) {
  return std::make_unique<abele::TrainingModel>(abele::trainingModel(
      net, [net](at::Tensor x) mutable { return abele::identityLoss(net(x).square()); }, options(),
      abele::optim::SGD{.lr = 0.1}));
}

const at::Tensor& x() {
  static const at::Tensor tensor = torch::ones({4, 4});
  return tensor;
}

bool is_child = false;

/// Runs fn in a forked child, which then ends as programs do. Returns its exit status; -1 if a signal ended it, or if
/// it took too long.
int inChild(const std::function<bool()>& fn) {
  return abele::test::inChild([&]() -> int {
    ::alarm(120);
    is_child = true;
    std::exit(fn() ? 0 : 1);
  });
}

class Forks : public testing::Test {
 protected:
  Forks() {
    at::set_num_threads(1);
    (*model)(x());
  }
  ~Forks() override { EXPECT_EQ((*model)(x()).size(), 1u); }  // the parent continues
  Net net;
  std::unique_ptr<abele::TrainingModel> model = train(net);
};

TEST_F(Forks, ChildEnds) {
  // Destroyed at exit(), in parent and child.
  static std::unique_ptr<abele::TrainingModel> of_static_lifetime;
  of_static_lifetime = train(Net());
  (*of_static_lifetime)(x());
  EXPECT_EQ(inChild([] { return true; }), 0);
}

/// Made before main(), and so destroyed after everything that the library made at its first use.
std::vector<std::unique_ptr<abele::TrainingModel>> of_the_whole_program;

TEST(Ends, ModelsOfTheWholeProgramEndLast) {
  static std::vector<std::unique_ptr<abele::TrainingModel>>* const models = &of_the_whole_program;
  const int status = inChild([] {
    at::set_num_threads(1);
    for (int i = 0; i < 8; ++i) (*models->emplace_back(train(Net())))(x());
    return true;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Forks, ChildDestroys) {
  EXPECT_EQ(inChild([&] {
              model->destroy();
              return !model->isCompiled();
            }),
            0);
  EXPECT_EQ(inChild([&] {
              model.reset();
              return true;
            }),
            0);
}

TEST_F(Forks, ChildCalls) {
  EXPECT_EQ(inChild([&] {
              return codeOf([&] { (*model)(x()); }) == "E0607" &&
                     codeOf([&] { model->copyWeightsToHost(); }) == "E0607" &&
                     codeOf([&] { model->save("/dev/null"); }) == "E0607";
            }),
            0);
}

TEST_F(Forks, ChildCompilesAnew) {
  EXPECT_EQ(inChild([&] {
              model->destroy();
              (*model)(x());
              Net other;
              auto inference = abele::inferenceModel(other, options());
              const torch::NoGradGuard no_grad;
              return torch::equal(inference(x())[0], other(x()));
            }),
            0);
}

TEST_F(Forks, ChildHasALoader) {
  abele::DataLoaderOptions loading;
  loading.mode = abele::DataLoaderMode::kAsync;
  loading.buffer_size = 1;
  auto loader = std::make_unique<abele::DataLoader>(options(), std::vector<at::Tensor>{torch::ones({64, 4})}, loading);
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(loader->next(batch));
  EXPECT_EQ(inChild([&] {
              const bool refused = codeOf([&] { loader->next(batch); }) == "E0607";
              loader.reset();
              return refused;
            }),
            0);
  EXPECT_TRUE(loader->next(batch));
}

class FreedMemory : public testing::TestWithParam<bool> {
 protected:
  abele::Options chosen() const {
    abele::Options made = options();
    made.shareWeights(GetParam());
    return made;
  }
};

TEST_P(FreedMemory, OfAParameter) {
  Net net;
  auto model = abele::trainingModel(
      net, [net](at::Tensor value) mutable { return abele::identityLoss(net(value).square()); }, chosen(),
      abele::optim::SGD{.lr = 0.1});
  model(x());
  model.copyWeightsToHost();
  auto* const storage = net->second->weight.storage().unsafeGetStorageImpl();
  const size_t bytes = storage->nbytes();
  at::DataPtr kept = storage->set_data_ptr(at::DataPtr());
  storage->set_nbytes(0);
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { model.copyWeightsToDevice(); }, [&] { model.copyWeightsToHost(); },
           [&] { model.loadStateDict(model.stateDict()); }, [&] { model.save(testing::TempDir() + "/freed.bin"); }}) {
    const std::string text = errorOf(call);
    EXPECT_TRUE(text.starts_with("E0708")) << text;
    EXPECT_NE(text.find("second.weight"), std::string::npos) << text;
  }
  storage->set_data_ptr_noswap(std::move(kept));
  storage->set_nbytes(bytes);
  model.copyWeightsToDevice();
  EXPECT_EQ(model(x()).size(), 1u);
}

TEST_P(FreedMemory, OfAnInput) {
  Net net;
  auto model = abele::inferenceModel(net, chosen());
  model(x());
  const at::Tensor input = torch::ones({4, 4});
  input.storage().unsafeGetStorageImpl()->set_nbytes(8);
  const std::string text = errorOf([&] { model(input); });
  EXPECT_TRUE(text.starts_with("E0708")) << text;
  EXPECT_NE(text.find("input 0"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Api, FreedMemory, testing::Bool(),
                         [](const auto& info) { return info.param ? "Shared" : "Copied"; });

}  // namespace faults_test

#ifdef __SANITIZE_ADDRESS__
/// The leak checker asks at the end of a process. What the parent's threads hold is lost in a child, which has none.
extern "C" int __lsan_is_turned_off() { return static_cast<int>(faults_test::is_child); }
#endif
