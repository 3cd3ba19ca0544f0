// The results of a call: output modes, shapes; results that are inputs, host tensors or repeated; arguments written in
// place.
#include <gtest/gtest.h>

#include "networks.h"

namespace abele::test {
namespace {

compile::ProgramOptions inference(int64_t iterations, compile::OutputMode mode = compile::OutputMode::kAll,
                                  int64_t period = 1) {
  compile::ProgramOptions options;
  options.device_iterations = iterations;
  options.output_mode = mode;
  options.output_period = period;
  options.threads_per_device = 1;
  return options;
}

session::Session compiled(compile::ProgramOptions options, std::function<Tensors(Tensors)> forward,
                          const Tensors& inputs) {
  session::Session session(std::move(options));
  session.compile({.forward = std::move(forward)}, inputs, {});
  return session;
}

// forward: rows [2,3] -> {rows * 2, their sum (0-d)}.
Tensors doubleAndSum(const Tensors& in) { return {in[0] * 2, in[0].sum()}; }

struct ModeCase {
  compile::OutputMode mode;
  int64_t period;
  std::vector<int64_t> chosen;  // indices among 4 micro-batches
};

TEST(Outputs, EveryModeOfTheTable) {
  const at::Tensor x = torch::arange(24, torch::kFloat).reshape({8, 3});
  const ModeCase cases[] = {{compile::OutputMode::kAll, 1, {0, 1, 2, 3}},
                            {compile::OutputMode::kEveryN, 2, {1, 3}},
                            {compile::OutputMode::kEveryN, 3, {2}},
                            {compile::OutputMode::kEveryN, 4, {3}},
                            {compile::OutputMode::kFinal, 1, {3}}};
  for (const ModeCase& c : cases) {
    session::Session session = compiled(inference(4, c.mode, c.period), doubleAndSum, {x});
    const Tensors found = session.run({x});
    Tensors rows, sums;
    for (int64_t k : c.chosen) {
      const Tensors expected = doubleAndSum(microBatch({x}, k, 4));
      rows.push_back(expected[0]);
      sums.push_back(expected[1]);
    }
    EXPECT_TRUE(torch::equal(found[0], torch::cat(rows))) << "period " << c.period;
    EXPECT_TRUE(torch::equal(found[1], sums.size() == 1 ? sums[0] : torch::stack(sums))) << "period " << c.period;
  }
}

TEST(Outputs, SumAddsTheMicroBatchesInOrder) {
  const at::Tensor x = torch::randn({8, 3});
  session::Session session = compiled(inference(4, compile::OutputMode::kSum), doubleAndSum, {x});
  const Tensors found = session.run({x});
  Tensors expected = doubleAndSum(microBatch({x}, 0, 4));
  for (int64_t k = 1; k < 4; ++k)
    for (size_t i = 0; i < 2; ++i) expected[i] += doubleAndSum(microBatch({x}, k, 4))[i];
  EXPECT_TRUE(torch::equal(found[0], expected[0]));
  EXPECT_TRUE(torch::equal(found[1], expected[1]));
  EXPECT_EQ(found[1].dim(), 0);
}

TEST(Outputs, OneMicroBatchKeepsItsShape) {
  const at::Tensor x = torch::randn({2, 3});
  for (compile::OutputMode mode : {compile::OutputMode::kAll, compile::OutputMode::kFinal, compile::OutputMode::kSum}) {
    session::Session session = compiled(inference(1, mode), doubleAndSum, {x});
    const Tensors found = session.run({x});
    EXPECT_TRUE(torch::equal(found[0], x * 2));
    EXPECT_EQ(found[1].dim(), 0);
  }
}

TEST(Outputs, MayBeInputsRepeatedOrOnTheHost) {
  const at::Tensor x = torch::randn({4, 3});
  const at::Tensor host = torch::full({2}, 7.0);
  session::Session session = compiled(inference(2),
                                      [&](Tensors in) {
                                        const at::Tensor y = in[0] + 1;
                                        return Tensors{y, in[0], host, y, y.t()};
                                      },
                                      {x});
  const Tensors found = session.run({x});
  ASSERT_EQ(found.size(), 5u);
  EXPECT_TRUE(torch::equal(found[0], x + 1));
  EXPECT_TRUE(torch::equal(found[1], x));
  EXPECT_TRUE(torch::equal(found[2], host));
  EXPECT_TRUE(torch::equal(found[3], x + 1));
  EXPECT_TRUE(torch::equal(found[4], torch::cat({(x + 1).narrow(0, 0, 2).t(), (x + 1).narrow(0, 2, 2).t()})));
}

TEST(Outputs, DoNotShareMemoryWithTheNextStep) {
  const at::Tensor x = torch::randn({4, 3});
  session::Session session = compiled(inference(2), doubleAndSum, {x});
  const Tensors first = session.run({x});
  const at::Tensor kept = first[0].clone();
  session.run({x + 1});
  EXPECT_TRUE(torch::equal(first[0], kept));
}

TEST(Inputs, MayAliasEachOtherAndHaveAnyStrides) {
  const at::Tensor x = torch::randn({4, 3});
  const auto minus = [](Tensors in) { return Tensors{in[0] - in[1] * 2}; };
  session::Session session = compiled(inference(2), minus, {x, x});
  EXPECT_TRUE(torch::equal(session.run({x, x})[0], x - x * 2));
  const at::Tensor other = torch::randn({3, 4}).t();
  EXPECT_TRUE(torch::equal(session.run({x, other})[0], x - other * 2));
  const at::Tensor wide = torch::randn({4, 6}).narrow(1, 1, 3);
  EXPECT_TRUE(torch::equal(session.run({wide, x})[0], wide - x * 2));
}

TEST(Inputs, WrittenInPlaceReachTheCaller) {
  const auto forward = [](Tensors in) {
    const at::Tensor before = in[0] * 3;
    in[0].add_(1);
    return Tensors{before, in[0] * 2};
  };
  const at::Tensor x = torch::randn({4, 3});
  const at::Tensor original = x.clone();
  session::Session session = compiled(inference(2), forward, {x});
  EXPECT_TRUE(torch::equal(x, original)) << "compile wrote the argument";
  const Tensors found = session.run({x});
  EXPECT_TRUE(torch::equal(found[0], original * 3));
  EXPECT_TRUE(torch::equal(found[1], (original + 1) * 2));
  EXPECT_TRUE(torch::equal(x, original + 1));
}

TEST(Constants, AreWhatTheyWereAtCompile) {
  at::Tensor table = torch::randn({3});
  const at::Tensor x = torch::randn({4, 3});
  const at::Tensor expected = x + table;
  session::Session session = compiled(inference(2), [&](Tensors in) { return Tensors{in[0] + table}; }, {x});
  table.add_(1);
  EXPECT_TRUE(torch::equal(session.run({x})[0], expected));
}

}  // namespace
}  // namespace abele::test
