// Any graph, any schedule, any number of workers: the same contents as doing one thing after the other.
#include <gtest/gtest.h>

#include "exe/build/build.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/pass.h"
#include "plan/plan.h"
#include "race_check.h"
#include "random_graph.h"
#include "reference.h"
#include "runtime/device/null/null_backend.h"
#include "runtime/runtime.h"

namespace abele::test {
namespace {

std::vector<std::vector<Bytes>> makeArguments(const ir::Graph& graph, int64_t micro_batches, int step) {
  std::vector<std::vector<Bytes>> arguments;
  for (const ir::Input& in : graph.inputs) {
    if (in.kind != ir::InputKind::kArgument) continue;
    auto& frames = arguments.emplace_back();
    for (int64_t k = 0; k < micro_batches; ++k)
      frames.push_back(
          Symbol(cat("x", in.external)).contents(step * 1000 + k, graph.values[in.value].type.extentBytes()));
  }
  return arguments;
}

// original: the same program before passes changed it.
void checkSteps(const ir::Graph& graph, const plan::PlanOptions& options, const ir::Graph& original) {
  const plan::Plan plan = plan::makePlan(graph, options);
  const exe::Executable executable = exe::build(graph, plan);
  ASSERT_EQ(exe::verify(executable), std::vector<std::string>{}) << exe::print(executable);
  ASSERT_EQ(findRaces(executable), std::vector<std::string>{}) << exe::print(executable);
  runtime::NullBackend backend(executable);
  backend.enableContents();
  runtime::Runtime runtime(executable, backend);
  Reference reference(original, options.device_iterations, options.accumulation);
  for (int step = 0; step < 2; ++step) {
    const auto arguments = makeArguments(graph, executable.micro_batches, step);
    for (size_t a = 0; a < arguments.size(); ++a)
      for (size_t k = 0; k < arguments[a].size(); ++k) backend.setInput(a, k, arguments[a][k]);
    runtime.run();
    reference.step(arguments);
    for (size_t t = 0; t < reference.outputs.size(); ++t)
      for (size_t k = 0; k < reference.outputs[t].size(); ++k)
        ASSERT_EQ(backend.output(t, k), reference.outputs[t][k]) << "result " << t << " of micro-batch " << k << "\n"
                                                                 << exe::print(executable);
    for (size_t e = 0; e < executable.externals.size(); ++e)
      if (executable.externals[e].slot >= 0) {
        ASSERT_EQ(backend.external(e), reference.externals[e])
            << executable.externals[e].name << " after step " << step << "\n"
            << exe::print(executable);
      }
  }
}

class RandomSteps : public testing::TestWithParam<int> {};

TEST_P(RandomSteps, TrainingEqualsTheReference) {
  for (uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed + 7777);
    plan::PlanOptions options;
    static constexpr plan::ScheduleKind kKinds[] = {plan::ScheduleKind::kSharded,    plan::ScheduleKind::k1F1B,
                                                    plan::ScheduleKind::kGPipe,      plan::ScheduleKind::kInterleaved,
                                                    plan::ScheduleKind::kZeroBubble, plan::ScheduleKind::kZeroBubble2};
    options.schedule = kKinds[random() % 6];
    ir::Graph graph = RandomGraph(seed, /*training=*/true, options.schedule == plan::ScheduleKind::kSharded).make();
    options.device_iterations = 1 + random() % 3;
    options.accumulation = 1 + random() % 7;
    const ir::Graph original = graph;
    if (random() % 2) {
      passes::PassContext context;
      context.recompute = {.enabled = true, .last_stage = random() % 2 == 0};
      passes::recompute(graph, context);
      // Random graphs have values that nothing makes.
      ASSERT_EQ(ir::verify(graph, ir::Form::kStaged), ir::verify(original, ir::Form::kStaged)) << ir::print(graph);
    }
    if (plan::splitsBackward(options.schedule) || random() % 4 == 0) {
      passes::PassContext context;
      passes::splitWeightGradient(graph, context);
    }
    if (random() % 2)
      for (size_t s = 0; s < graph.stages.size(); ++s)
        options.costs.push_back({static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 9),
                                 static_cast<int64_t>(random() % 9), 0});
    checkSteps(graph, options, original);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RandomSteps, InferenceEqualsTheReference) {
  for (uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    const ir::Graph graph = RandomGraph(seed, /*training=*/false).make();
    checkSteps(graph,
               {.schedule = plan::ScheduleKind::kForward, .device_iterations = 1 + static_cast<int64_t>(seed % 7)},
               graph);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSteps, testing::Range(0, 10));

}  // namespace
}  // namespace abele::test
