// Batches of requests: their content, and when the next one is made.
#include "data/batcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "base/error.h"

namespace abele::data {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kBatch = 8;

/// A model whose calls wait until it is open.
class Gate {
 public:
  Batcher::Tensors pass(const Batcher::Tensors& batch) {
    std::unique_lock lock(mu_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --waiting_;
    return {batch[0] * 2};
  }
  void awaitCall() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mu_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

at::Tensor rowsFrom(int64_t first, int64_t rows) { return at::arange(first, first + 2 * rows).reshape({rows, 2}); }

bool isAnswer(std::optional<std::future<Batcher::Tensors>>& found, const at::Tensor& rows) {
  const Batcher::Tensors results = found->get();
  return results.size() == 1 && at::equal(results[0], rows * 2);
}

Batcher::Settings settings(std::chrono::nanoseconds longest_wait) {
  return {.batch_rows = kBatch, .longest_wait = longest_wait, .most_waiting_rows = 1000, .most_kinds = 4};
}

TEST(Batcher, ARequestIsCutWhereItFillsABatch) {
  Batcher batcher([](const std::string&, const Batcher::Tensors& batch) { return Batcher::Tensors{batch[0] * 2}; },
                  settings(24h));
  const at::Tensor first = rowsFrom(0, 5), second = rowsFrom(100, 6), third = rowsFrom(200, 5);
  auto of_first = batcher.submit("t", {first}), of_second = batcher.submit("t", {second});
  auto of_third = batcher.submit("t", {third});
  batcher.stop();
  EXPECT_TRUE(isAnswer(of_first, first));
  EXPECT_TRUE(isAnswer(of_second, second));
  EXPECT_TRUE(isAnswer(of_third, third));
  EXPECT_EQ(batcher.statistics().batches, 2);
  EXPECT_EQ(batcher.statistics().filling_rows, 0);
  EXPECT_EQ(batcher.statistics().requests, 3);
}

TEST(Batcher, AnErrorInAPartIsTheRequestsError) {
  Batcher batcher(
      [](const std::string&, const Batcher::Tensors& batch) {
        if (batch[0].max().item<int64_t>() >= 1000) throw std::runtime_error("too large");
        return Batcher::Tensors{batch[0] * 2};
      },
      settings(24h));
  const at::Tensor first = rowsFrom(0, 5), cut = rowsFrom(985, 11), last = rowsFrom(300, 8);
  auto of_first = batcher.submit("t", {first}), of_cut = batcher.submit("t", {cut}),
       of_last = batcher.submit("t", {last});
  EXPECT_TRUE(isAnswer(of_first, first));
  EXPECT_TRUE(isAnswer(of_last, last));
  EXPECT_THROW(of_cut->get(), std::runtime_error);
  EXPECT_EQ(batcher.statistics().failed, 1);
}

TEST(Batcher, AFullBatchIsPutTogetherWhileOneRuns) {
  Gate gate;
  Batcher batcher([&](const std::string&, const Batcher::Tensors& batch) { return gate.pass(batch); }, settings(24h));
  const at::Tensor first = rowsFrom(0, kBatch), second = rowsFrom(100, kBatch);
  auto of_first = batcher.submit("t", {first});
  gate.awaitCall();
  auto of_second = batcher.submit("t", {second});
  const auto patience = Batcher::Clock::now() + 60s;
  while (batcher.statistics().waiting_rows > 0 && Batcher::Clock::now() < patience) std::this_thread::yield();
  EXPECT_EQ(batcher.statistics().waiting_rows, 0);
  gate.open();
  EXPECT_TRUE(isAnswer(of_first, first));
  EXPECT_TRUE(isAnswer(of_second, second));
}

TEST(Batcher, ABatchThatIsNotFullWaitsForTheOneThatRuns) {
  Gate gate;
  Batcher batcher([&](const std::string&, const Batcher::Tensors& batch) { return gate.pass(batch); }, settings(0ns));
  const at::Tensor first = rowsFrom(0, 3), second = rowsFrom(100, 3), third = rowsFrom(200, 5);
  auto of_first = batcher.submit("t", {first});
  gate.awaitCall();
  auto of_second = batcher.submit("t", {second}), of_third = batcher.submit("t", {third});
  gate.open();
  EXPECT_TRUE(isAnswer(of_first, first));
  EXPECT_TRUE(isAnswer(of_second, second));
  EXPECT_TRUE(isAnswer(of_third, third));
  EXPECT_EQ(batcher.statistics().batches, 2);
}

TEST(Batcher, KindsBeyondTheirNumberAreRefusedAlsoWhereTheyWaited) {
  Gate gate;
  Batcher::Settings one = settings(0ns);
  one.most_kinds = 1;
  std::atomic<int> calls = 0;
  Batcher batcher(
      [&](const std::string&, const Batcher::Tensors& batch) {
        ++calls;
        return gate.pass(batch);
      },
      one);
  const at::Tensor rows = rowsFrom(0, 5);
  auto first = batcher.submit("t", {rows});
  gate.awaitCall();
  auto second = batcher.submit("t", {rows.to(at::kInt)});  // before any answer
  gate.open();
  EXPECT_TRUE(isAnswer(first, rows));
  EXPECT_THROW(second->get(), UserError);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace abele::data
