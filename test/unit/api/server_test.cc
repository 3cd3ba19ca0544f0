// Servers: many callers, each gets its own rows or its own error; the queue is bounded, and stopping answers all.
#include "abele/server.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <random>
#include <thread>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace abele::test::server_test {

using namespace std::chrono_literals;

constexpr int64_t kBatch = 8, kWords = 50;

/// Numbers that all kernels compute exactly: the answer does not depend on a row's place in a batch.
InferenceModel lookUp() {
  return inferenceModel([table = torch::arange(2 * kWords, torch::kFloat).reshape({kWords, 2})](const at::Tensor& ids) {
    return std::vector<at::Tensor>{torch::embedding(table, ids).sum(1), ids * 3};
  });
}
ServerOptions options(std::chrono::nanoseconds wait = 0ns) { return {.batch_rows = kBatch, .longest_wait = wait}; }

at::Tensor idsOf(int64_t rows, int64_t first) { return (torch::arange(rows * 4).reshape({rows, 4}) + first) % kWords; }

void expectAnswer(const at::Tensor& ids, const std::vector<at::Tensor>& found) {
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(torch::equal(found[0], torch::stack({2 * ids.sum(1), 2 * ids.sum(1) + 4}, 1).to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(found[1], ids * 3));
}

TEST(Server, EachCallerGetsItsRowsAndItsErrors) {
  constexpr int kThreads = 32, kRequests = 60;
  Server server(lookUp(), options(100us));
  server(idsOf(1, 0));  // compiles with a valid request
  std::atomic<int> wrong_words = 0;
  const auto call = [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int i = 0; i < kRequests; ++i) {
      const int64_t rows = 1 + static_cast<int64_t>(random() % 20);
      at::Tensor ids = idsOf(rows, static_cast<int64_t>(random() % kWords));
      if ((thread * kRequests + i) % 100 == 7) {
        ids[rows - 1][3] = kWords;
        EXPECT_THROW(server(ids), Error);
        ++wrong_words;
      } else {
        expectAnswer(ids, server(ids));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(call, t);
  for (std::thread& thread : threads) thread.join();
  const ServerStatistics found = server.statistics();
  EXPECT_EQ(found.requests, kThreads * kRequests + 1);
  EXPECT_EQ(found.failed, wrong_words);
  EXPECT_EQ(found.waiting_rows, 0);
  EXPECT_GT(found.p50_s, 0);
  EXPECT_LE(found.p50_s, found.p90_s);
  EXPECT_LE(found.p90_s, found.p99_s);
  EXPECT_LE(found.p99_s, found.longest_s);
}

TEST(Server, FullBatchesDoNotWait) {
  Server server(lookUp(), options(24h));
  auto first = server.submit(idsOf(3, 1)), second = server.submit(idsOf(5, 2));
  expectAnswer(idsOf(3, 1), first.get());
  expectAnswer(idsOf(5, 2), second.get());
  EXPECT_EQ(server.statistics().batches, 1);
  EXPECT_EQ(server.statistics().filling_rows, 0);
  expectAnswer(idsOf(16, 3), server(idsOf(16, 3)));
  EXPECT_EQ(server.statistics().batches, 3);
}

TEST(Server, RequestsThatWaitedLongEnoughDoNotWaitForOthers) {
  Server server(lookUp(), options(1ms));
  expectAnswer(idsOf(3, 1), server(idsOf(3, 1)));
  EXPECT_EQ(server.statistics().filling_rows, kBatch - 3);
}

TEST(Server, StoppingAnswersWhatWasSubmitted) {
  Server server(lookUp(), options(24h));
  auto first = server.submit(idsOf(3, 1)), second = server.submit(idsOf(19, 4));
  server.stop();
  expectAnswer(idsOf(3, 1), first.get());
  expectAnswer(idsOf(19, 4), second.get());
  EXPECT_EQ(codeOf([&] { server(idsOf(1, 0)); }), "E0705");
  server.stop();
}

TEST(Server, AFullQueueTakesNoMore) {
  ServerOptions few = options(24h);
  few.most_waiting_rows = 4;
  Server server(lookUp(), few);
  auto first = server.submit(idsOf(3, 1));
  EXPECT_FALSE(server.trySubmit(idsOf(2, 1)));
  EXPECT_TRUE(server.trySubmit(idsOf(1, 1)));
  EXPECT_EQ(server.statistics().waiting_rows, 4);
  std::thread waits([&] { EXPECT_EQ(codeOf([&] { server(idsOf(1, 1)); }), "E0705"); });
  server.stop();
  waits.join();
  expectAnswer(idsOf(3, 1), first.get());
}

TEST(Server, EachShapeHasAProgram) {
  ServerOptions two = options();
  two.most_shapes = 2;
  Server server(lookUp(), two);
  const auto ids = [](int64_t width) { return torch::ones({3, width}, torch::kLong); };
  EXPECT_TRUE(torch::equal(server(ids(4))[0], torch::tensor({8.F, 12.F}).expand({3, 2})));
  EXPECT_TRUE(torch::equal(server(ids(6))[0], torch::tensor({12.F, 18.F}).expand({3, 2})));
  EXPECT_EQ(codeOf([&] { server(ids(5)); }), "E0704");
  EXPECT_TRUE(torch::equal(server(ids(4))[1], ids(4) * 3));
}

TEST(Server, AShapeThatCannotBeCompiledIsCapturedOnce) {
  std::atomic<int> captures = 0;
  const at::Tensor weight = torch::ones({4, 2});
  Server server(inferenceModel([&captures, weight](const at::Tensor& x) {
                  ++captures;
                  if (x.size(1) == 3) return x * x.sum().item<float>();  // E0101
                  if (x.size(1) == 2) throw std::runtime_error("nobody knows why");
                  return torch::mm(x, weight);
                }),
                options());
  const auto ask = [&](int64_t width) { return server(torch::ones({3, width})); };
  ask(4);
  EXPECT_EQ(captures, 2);  // the second one checks the first
  for (int i = 0; i < 3; ++i) EXPECT_THROW(ask(5), c10::Error);
  EXPECT_EQ(captures, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(codeOf([&] { ask(3); }), "E0101");
  EXPECT_EQ(captures, 4);
  for (int i = 0; i < 3; ++i) EXPECT_THROW(ask(2), std::runtime_error);
  EXPECT_EQ(captures, 7);
  EXPECT_TRUE(torch::equal(ask(4)[0], torch::full({3, 2}, 4.F)));
}

TEST(Server, WrongValuesShutNobodyOut) {
  Server server(lookUp(), options());
  const at::Tensor wrong = torch::full({2, 4}, kWords);
  EXPECT_ANY_THROW(server(wrong));  // the first of its shape
  expectAnswer(idsOf(2, 1), server(idsOf(2, 1)));
  EXPECT_ANY_THROW(server(wrong));
  expectAnswer(idsOf(2, 1), server(idsOf(2, 1)));
  Server steered(inferenceModel([](const at::Tensor& ids) {
                   const bool is_wrong = ids.eq(kWords).any().item<bool>();
                   return is_wrong ? torch::mm(ids, ids) : ids * 3;
                 }),
                 options());
  EXPECT_ANY_THROW(steered(wrong));
  EXPECT_TRUE(torch::equal(steered(idsOf(2, 1))[0], idsOf(2, 1) * 3));
}

TEST(Server, AProgramOfAFileKnowsItsBatch) {
  const std::string path = testing::TempDir() + "/server.abele";
  lookUp().compileAndExport(path, idsOf(kBatch, 0));
  Server server(loadInferenceModel(path), {.longest_wait = 24h});
  expectAnswer(idsOf(kBatch, 9), server(idsOf(kBatch, 9)));
  EXPECT_EQ(codeOf([&] { server(idsOf(kBatch, 0).to(torch::kFloat)); }), "E0704");
}

TEST(Server, WhatIsRefused) {
  Server server(lookUp(), options());
  EXPECT_EQ(codeOf([&] { server(torch::ones({}, torch::kLong)); }), "E0708");
  EXPECT_EQ(codeOf([&] { server(torch::ones({0, 4}, torch::kLong)); }), "E0708");
  EXPECT_EQ(codeOf([&] { server(std::vector<at::Tensor>()); }), "E0708");
  EXPECT_EQ(codeOf([&] { server(std::vector{idsOf(2, 0), idsOf(3, 0)}); }), "E0708");
  EXPECT_EQ(codeOf([&] { Server{lookUp()}; }), "E0705");
  EXPECT_EQ(codeOf([&] { Server(lookUp(), {.batch_rows = -1}); }), "E0702");
  EXPECT_EQ(codeOf([&] { Server(lookUp(), {.batch_rows = 1, .most_waiting_rows = 0}); }), "E0702");
  EXPECT_EQ(codeOf([&] { Server(lookUp(), {.batch_rows = 1, .most_shapes = 0}); }), "E0702");
  InferenceModel moved = lookUp();
  const InferenceModel other = std::move(moved);
  EXPECT_EQ(codeOf([&] { Server(std::move(moved), {.batch_rows = 1}); }), "E0705");
  Server sums(inferenceModel([](const at::Tensor& x) { return x.sum(); }), options());
  EXPECT_EQ(codeOf([&] { sums(torch::ones({2, 4})); }), "E0708");
}

TEST(Server, TensorsThatCannotBeRowsAreErrorsOfTheirCaller) {
  Server server(lookUp(), options());
  EXPECT_EQ(codeOf([&] { server(idsOf(2, 0).to_sparse()); }), "E0708");
  EXPECT_EQ(codeOf([&] { server(std::vector<at::Tensor>{at::Tensor()}); }), "E0708");
  const at::Tensor scales = torch::ones({2}, torch::kDouble), zeros = torch::zeros({2}, torch::kLong);
  EXPECT_ANY_THROW(server(torch::quantize_per_channel(torch::ones({2, 4}), scales, zeros, 0, torch::kQInt8)));
  expectAnswer(idsOf(2, 0), server(idsOf(2, 0)));
}

}  // namespace abele::test::server_test
