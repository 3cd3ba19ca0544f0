// Batches of abele::DataLoader.
#include <algorithm>
#include <ranges>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace data_loader_test {

using abele::test::codeOf;

abele::Options calls(int64_t iterations) { return abele::Options().deviceIterations(iterations); }

std::vector<at::Tensor> firstTensors(abele::DataLoader& loader) {
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& batch : loader) all.push_back(batch[0]);
  return all;
}

TEST(DataLoader, CombinesMicroBatches) {
  const at::Tensor x = torch::arange(20).reshape({10, 2});
  const at::Tensor y = torch::arange(10);
  abele::DataLoader loader(calls(2), {x, y}, {.batch_size = 2});
  EXPECT_EQ(loader.combinedBatchSize(), 4);
  EXPECT_EQ(loader.size(), 2);
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_TRUE(torch::equal(batch[0], x.narrow(0, 0, 4)));
  EXPECT_TRUE(torch::equal(batch[1], y.narrow(0, 0, 4)));
  ASSERT_TRUE(loader.next(batch));
  EXPECT_FALSE(loader.next(batch));
  loader.reset();
  EXPECT_TRUE(loader.next(batch));
}

TEST(DataLoader, ProcessesThatShareAReplicaTakeTheSameRows) {
  for (const auto& [replicas, rows, shares, own] : {std::tuple(2, 3, 2, 1), {8, 6, 4, 2}}) {
    abele::Options options;
    options.replicationFactor(replicas);
    options.Distributed().configureProcessId(2, 4).devicesPerProcess(1);
    EXPECT_EQ(options.combinedBatchSize(3), rows);
    const abele::DataLoaderOptions loading = abele::ownShare(options, {.shuffle = true});
    EXPECT_EQ(std::tuple(loading.num_processes, loading.process_id, loading.shuffle), std::tuple(shares, own, true));
  }
}

TEST(DataLoader, RefusesBatchesThatCannotBeCounted) {
  const auto load = [] { abele::DataLoader(calls(int64_t{1} << 32), {torch::arange(10)}, {.batch_size = 1LL << 32}); };
  EXPECT_EQ(codeOf(load), "E0702");
  EXPECT_EQ(codeOf([] { abele::DataLoader(calls(1), {at::Tensor()}, {}); }), "E0801");
  EXPECT_EQ(codeOf([] { abele::DataLoader(calls(1), {torch::ones({2, 2}).to_sparse()}, {}); }), "E0801");
  abele::DataLoader undefined(calls(1), [](int64_t) { return std::vector{at::Tensor()}; }, 2, {});
  std::vector<at::Tensor> batch;
  EXPECT_EQ(codeOf([&] { undefined.next(batch); }), "E0801");
}

TEST(DataLoader, IsARangeOfTheStandardLibrary) {
  abele::DataLoader loader(calls(1), {torch::arange(6)}, {.batch_size = 2});
  static_assert(std::ranges::input_range<abele::DataLoader>);
  static_assert(std::ranges::input_range<abele::AsynchronousDataAccessor>);
  int64_t sum = 0;
  for (const auto& batch : loader | std::views::take(2)) sum += batch[0].sum().item<int64_t>();
  EXPECT_EQ(sum, 0 + 1 + 2 + 3);
  abele::AsynchronousDataAccessor accessor(loader, {.load_indefinitely = false});
  EXPECT_EQ(std::count_if(accessor.begin(), accessor.end(), [](const auto& batch) { return batch.size() == 1; }), 3);
  for (auto at = loader.begin(); at != loader.end(); at++) EXPECT_EQ(at->size(), 1U);
}

TEST(DataLoader, OneTakesThePlaceOfAnother) {
  abele::DataLoader loader(calls(1), {torch::arange(6)});
  EXPECT_EQ(loader.size(), 6);  // batches of one sample
  loader = abele::DataLoader(calls(1), {torch::arange(6)}, {.batch_size = 3, .mode = abele::DataLoaderMode::kAsync});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(firstTensors(loader).size(), 2U);
}

TEST(DataLoader, SaysThatItWasMovedFrom) {
  abele::DataLoader loader(calls(1), {torch::arange(10)}, {});
  abele::AsynchronousDataAccessor accessor(loader);
  const abele::DataLoader moved(std::move(loader));
  const abele::AsynchronousDataAccessor moved_too(std::move(accessor));
  EXPECT_EQ(codeOf([&] { loader.size(); }), "E0801");         // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(codeOf([&] { loader.begin(); }), "E0801");        // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(codeOf([&] { accessor.terminate(); }), "E0801");  // NOLINT(bugprone-use-after-move)
}

TEST(DataLoader, GoesToAFarPassAtOnce) {
  abele::DataLoader loader(calls(1), {torch::arange(10)}, {});
  loader.seek({.pass = int64_t{1} << 60, .batches = 3});
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch[0].item<int64_t>(), 3);
}

TEST(DataLoader, KeepsTheLastBatchWhenAsked) {
  abele::DataLoader loader(calls(2), {torch::arange(10)}, {.batch_size = 2, .drop_last = false});
  EXPECT_EQ(loader.size(), 3);
  const std::vector<at::Tensor> all = firstTensors(loader);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2].size(0), 2);
}

TEST(DataLoader, ShufflesBySeedAndPass) {
  const at::Tensor x = torch::arange(64);
  const auto passes = [&](uint64_t seed) {
    abele::DataLoader loader(calls(1), {x}, {.batch_size = 8, .shuffle = true, .seed = seed});
    return std::pair(torch::cat(firstTensors(loader)), torch::cat(firstTensors(loader)));
  };
  const auto [first, second] = passes(3);
  EXPECT_TRUE(torch::equal(std::get<0>(first.sort()), x));
  EXPECT_FALSE(torch::equal(first, x));
  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_TRUE(torch::equal(passes(3).first, first));
  EXPECT_TRUE(torch::equal(passes(3).second, second));
  EXPECT_FALSE(torch::equal(passes(4).first, first));
}

TEST(DataLoader, StacksSamplesOfACallable) {
  const auto sample = [](int64_t i) { return std::vector<at::Tensor>{torch::full({2}, i), torch::tensor(i)}; };
  abele::DataLoader loader(calls(1), sample, 5, {.batch_size = 2});
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(loader.next(batch));
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch[0].sizes(), at::IntArrayRef({2, 2}));
  EXPECT_TRUE(torch::equal(batch[1], torch::tensor({2, 3})));
}

TEST(DataLoader, RefusesSamplesThatDiffer) {
  EXPECT_THROW(abele::DataLoader(calls(1), {torch::zeros({4}), torch::zeros({5})}, {}), abele::UserError);
  EXPECT_THROW(abele::DataLoader(calls(1), {torch::zeros({4})}, {.batch_size = 0}), abele::UserError);
  abele::DataLoader loader(calls(1), [](int64_t i) { return std::vector<at::Tensor>{torch::zeros({i + 1})}; }, 4,
                           {.batch_size = 2});
  std::vector<at::Tensor> batch;
  EXPECT_THROW(loader.next(batch), abele::UserError);
}

TEST(DataLoader, FeedsAModel) {
  const abele::Options options = calls(2);
  auto model = abele::inferenceModel([](at::Tensor x) { return x * 2; }, options);
  abele::DataLoader loader(options, {torch::arange(12, torch::kFloat)}, {.batch_size = 3});
  int count = 0;
  for (const auto& batch : loader) {
    EXPECT_TRUE(torch::equal(model(batch)[0], batch[0] * 2));
    ++count;
  }
  EXPECT_EQ(count, 2);
}

TEST(DataLoader, TakesRowsOfFiles) {
  const std::string folder = testing::TempDir();
  const at::Tensor x = torch::randn({9, 3}), y = torch::arange(9);
  std::vector<std::string> paths;
  for (const auto& [begin, rows] : {std::pair(0, 4), {4, 0}, {4, 5}}) {
    paths.push_back(folder + "/rows" + std::to_string(paths.size()));
    abele::saveTensors(paths.back(), {{"x", x.narrow(0, begin, rows)}, {"y", y.narrow(0, begin, rows)}});
  }
  const abele::StoredRows rows(paths);
  ASSERT_EQ(rows.tensors().size(), 2u);
  EXPECT_EQ(rows.tensors()[0].name, "x");
  EXPECT_EQ(rows.tensors()[0].sizes, (std::vector<int64_t>{9, 3}));
  EXPECT_EQ(rows.tensors()[1].type, "Long");
  for (const auto mode : {abele::DataLoaderMode::kSync, abele::DataLoaderMode::kAsync})
    for (const bool shuffle : {false, true}) {
      const abele::DataLoaderOptions loading{
          .batch_size = 2, .shuffle = shuffle, .seed = 3, .drop_last = false, .mode = mode};
      abele::DataLoader stored(calls(2), rows, {"y", "x"}, loading), held(calls(2), {y, x}, loading);
      for (int pass = 0; pass < 2; ++pass) {
        std::vector<at::Tensor> a, b;
        while (held.next(b)) {
          ASSERT_TRUE(stored.next(a));
          EXPECT_TRUE(torch::equal(a[0], b[0]) && torch::equal(a[1], b[1]));
        }
        EXPECT_FALSE(stored.next(a));
        stored.reset();
        held.reset();
      }
    }
  const auto load = [&](std::vector<std::string> names) { abele::DataLoader(calls(1), rows, names, {}); };
  EXPECT_EQ(codeOf([&] { load({"z"}); }), "E0801");
  EXPECT_EQ(codeOf([&] { load({}); }), "E0801");
  abele::saveTensors(paths[1], {{"x", torch::ones({2, 4})}});
  EXPECT_EQ(codeOf([&] { abele::StoredRows{paths}; }), "E0801");
  abele::saveTensors(paths[1], {{"x", torch::ones({2, 3})}, {"z", torch::ones({})}});
  const abele::StoredRows uneven(paths);
  EXPECT_EQ(codeOf([&] { abele::DataLoader(calls(1), uneven, {"x", "y"}, {}); }), "E0801");
  EXPECT_EQ(codeOf([&] { abele::DataLoader(calls(1), uneven, {"z"}, {}); }), "E0801");
  EXPECT_EQ(codeOf([&] { abele::StoredRows({folder + "/none"}); }), "E0712");
}

TEST(DataLoader, BatchesAreCopies) {
  const at::Tensor x = torch::arange(8), before = x.clone();
  for (const bool shuffle : {false, true}) {
    abele::DataLoader loader(calls(1), {x}, {.batch_size = 4, .shuffle = shuffle});
    for (std::vector<at::Tensor> batch : loader) batch[0].zero_();
    EXPECT_TRUE(torch::equal(x, before));
  }
}

}  // namespace data_loader_test
