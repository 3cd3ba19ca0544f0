// AsynchronousDataAccessor: any source of batches, ahead of its use.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <atomic>
#include <future>
#include <list>
#include <stdexcept>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace data_accessor_test {

using abele::AsynchronousDataAccessor;
using abele::test::codeOf;

std::vector<int64_t> rowsOf(AsynchronousDataAccessor& accessor) {
  std::vector<int64_t> rows;
  for (const auto& batch : accessor)
    for (int64_t i = 0; i < batch[0].size(0); ++i) rows.push_back(batch[0][i].item<int64_t>());
  return rows;
}

std::vector<int64_t> upTo(int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < end; ++i) numbers.push_back(i);
  return numbers;
}

/// [0, 1], [2, 3], ...
std::list<at::Tensor> pairs(int64_t count) {
  std::list<at::Tensor> list;
  for (int64_t i = 0; i < count; ++i) list.push_back(torch::arange(2 * i, 2 * i + 2));
  return list;
}

TEST(Accessor, GivesEveryBatchOnceInOrderInEachPass) {
  for (const bool load_indefinitely : {true, false})
    for (const bool early_preload : {true, false}) {
      std::list<at::Tensor> source = pairs(7);
      AsynchronousDataAccessor accessor(
          source, {.buffer_size = 2, .load_indefinitely = load_indefinitely, .early_preload = early_preload});
      for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(rowsOf(accessor), upTo(14));
    }
}

TEST(Accessor, APassThatWasLeftBeginsAnew) {
  std::list<at::Tensor> source = pairs(7);
  AsynchronousDataAccessor accessor(source);
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(accessor.next(batch) && accessor.next(batch));
  EXPECT_EQ(batch[0][0].item<int64_t>(), 2);
  EXPECT_EQ(rowsOf(accessor), upTo(14));
}

TEST(Accessor, JoinsAndSplitsRows) {
  std::list<at::Tensor> source = pairs(5);
  AsynchronousDataAccessor dropping(source, {.rebatched_size = 3});
  EXPECT_EQ(rowsOf(dropping), upTo(9));
  AsynchronousDataAccessor keeping(source, {.rebatched_size = 3, .drop_last = false});
  EXPECT_EQ(rowsOf(keeping), upTo(10));
  std::vector<at::Tensor> batch;
  ASSERT_TRUE(keeping.next(batch));
  EXPECT_EQ(batch[0].size(0), 3);
}

TEST(Accessor, TakesLoadersOfAbeleAndOfTorch) {
  abele::DataLoader own({}, {torch::arange(10)}, {.batch_size = 5});
  AsynchronousDataAccessor over_own(own);
  EXPECT_EQ(rowsOf(over_own), upTo(10));
  auto data = torch::data::datasets::TensorDataset(torch::arange(6))
                  .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(std::move(data), 3);
  AsynchronousDataAccessor over_torch(*loader);
  EXPECT_EQ(rowsOf(over_torch), upTo(6));
}

TEST(Accessor, MakesBatchesBeforeTheyAreAskedFor) {
  std::promise<void> is_full;
  std::atomic<int> made = 0;
  AsynchronousDataAccessor accessor(
      [&] {
        return [&](std::vector<at::Tensor>& batch) {
          if (++made == 4) is_full.set_value();
          batch = {torch::ones({1})};
          return made < 100;
        };
      },
      {.buffer_size = 3, .load_indefinitely = false, .early_preload = true});
  is_full.get_future().wait();  // three in the buffer, one on the way
  accessor.terminate();
  EXPECT_EQ(made, 4);
  std::vector<at::Tensor> batch;
  EXPECT_EQ(codeOf([&] { accessor.next(batch); }), "E0801");
}

TEST(Accessor, WhatTheSourceThrowsComesOutInItsPlace) {
  AsynchronousDataAccessor accessor([] {
    return [n = 0](std::vector<at::Tensor>& batch) mutable {
      if (++n == 3) throw std::out_of_range("of the source");
      batch = {torch::ones({1})};
      return true;
    };
  });
  std::vector<at::Tensor> batch;
  EXPECT_TRUE(accessor.next(batch) && accessor.next(batch));
  EXPECT_THROW(accessor.next(batch), std::out_of_range);
}

TEST(Accessor, WrongSizesAreRefused) {
  std::list<at::Tensor> source = pairs(1);
  EXPECT_EQ(codeOf([&] { AsynchronousDataAccessor(source, {.buffer_size = 0}); }), "E0801");
  EXPECT_EQ(codeOf([&] { AsynchronousDataAccessor(source, {.rebatched_size = 0}); }), "E0801");
}

}  // namespace data_accessor_test
