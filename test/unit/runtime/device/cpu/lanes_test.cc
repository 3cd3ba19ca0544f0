// Micro-batches side by side: what takes the place of a call for each of them gives the bits of those.
#include <array>
#include <map>
#include <string>

#include <ATen/record_function.h>

#include "base/processor_loops.h"
#include "harness.h"

namespace abele::runtime::testing {
namespace {

constexpr int64_t kLanes = 4, kActions = 2, kMicroBatches = kLanes * kActions;

// Instructions for each lane. Inputs have a frame for each micro-batch; values have memory for all lanes.
struct LaneProgram : Program {
  LaneProgram() : Program(kMicroBatches) {
    executable.training = true;
    executable.lanes = kLanes;
    auto& actions = executable.workers[0].actions;
    actions.clear();
    for (int32_t action = 0; action < kActions; ++action)
      actions.push_back({0, action * static_cast<int32_t>(kLanes), {}});
    actions.push_back({1, static_cast<int32_t>(kMicroBatches) - 1, {}});
  }
  /// The rows of all lanes of an input.
  int32_t allOf(int32_t input) {
    Type type = executable.slots[input].type;
    type.sizes[0] *= kLanes;
    return slotAt(executable.slots[input].group, 0, type);
  }
  /// Slots of a value, by lane; its bytes fill cache lines.
  std::vector<int32_t> laneValues(const Type& type) {
    std::vector<int32_t> all;
    for (int64_t lane = 0; lane < kLanes; ++lane) all.push_back(value(type));
    return all;
  }
  void ofLane(int64_t lane, std::string name, std::vector<Arg> args, std::vector<int32_t> results = {}) {
    const std::vector<Arg> copy = args;
    exe::Instruction& made = op(std::move(name), std::move(args), std::move(results));
    made.lane = static_cast<int32_t>(lane);
    if (made.op.starts_with("abele::")) made.writes = {static_cast<int32_t>(copy[0].i)};
  }
};

// Names of the calls that a step makes.
std::map<std::string, int> callsOf(Runner& runner, const std::vector<at::Tensor>& batch) {
  static thread_local std::map<std::string, int> calls;
  calls.clear();
  const auto note = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    ++calls[function.name()];
    return nullptr;
  };
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  runner.step(batch);
  at::removeCallback(handle);
  return calls;
}

TEST(Lanes, SumsTakeTheGradientsOfAllAtOnce) {
  at::manual_seed(1);
  LaneProgram p;
  const int32_t gradient = p.input(f32({16, 48})), x = p.input(f32({16, 33})), term = p.input(f32({7, 5}));
  const int32_t transposed = p.viewOf(gradient, 0, {DType::kFloat32, {48, 16}, {1, 48}});
  const int32_t weight = p.external(f32({48, 33}), exe::ExternalKind::kAccumulator);
  const int32_t bias = p.external(f32({7, 5}), exe::ExternalKind::kAccumulator);
  for (int64_t lane = 0; lane < kLanes; ++lane)
    p.ofLane(lane, "abele::accumulate_product", {Arg::id(weight), Arg::id(transposed), Arg::id(x)});
  for (int64_t lane = 0; lane < kLanes; ++lane) p.ofLane(lane, "abele::accumulate", {Arg::id(bias), Arg::id(term)});
  ASSERT_EQ(exe::verify(p.executable), std::vector<std::string>{});
  Runner runner(p);
  for (int step = 0; step < 2; ++step) {
    const std::vector<at::Tensor> batch = {at::randn({kMicroBatches * 16, 48}), at::randn({kMicroBatches * 16, 33}),
                                           at::randn({kMicroBatches * 7, 5})};
    runner.step(batch);
    at::Tensor expected_weight, expected_bias;
    for (int64_t k = 0; k < kMicroBatches; ++k) {
      const at::Tensor product = batch[0].chunk(kMicroBatches)[k].t().mm(batch[1].chunk(kMicroBatches)[k]);
      const at::Tensor part = batch[2].chunk(kMicroBatches)[k];
      expected_weight = k == 0 ? product : expected_weight.add_(product);
      expected_bias = k == 0 ? part.clone() : expected_bias.add_(part);
    }
    EXPECT_TRUE(sameBits(runner.backend().value(0), expected_weight));
    EXPECT_TRUE(sameBits(runner.backend().value(1), expected_bias));
    std::map<std::string, int> calls = callsOf(runner, batch);
    EXPECT_EQ(calls["abele::accumulate"], kActions);
    EXPECT_EQ(calls["abele::accumulate_product"], processor() == Processor::kAvx512 ? kActions : kMicroBatches);
  }
}

TEST(Lanes, GradientsOfLayerNormalisationAreThoseOfEach) {
  at::manual_seed(2);
  constexpr int64_t kRows = 16, kWidth = 32;
  const at::Tensor w = at::randn({kWidth}), b = at::randn({kWidth});
  LaneProgram p;
  const int32_t x = p.input(f32({kRows, kWidth})), gradient = p.input(f32({kRows, kWidth}));
  const int32_t weight = p.external(f32({kWidth}), exe::ExternalKind::kParameter),
                bias = p.external(f32({kWidth}), exe::ExternalKind::kParameter);
  const Type rows = f32({kRows, kWidth}), numbers = f32({kRows, 1}), sums = f32({kWidth});
  const auto y = p.laneValues(rows), mean = p.laneValues(numbers), scale = p.laneValues(numbers),
             of_x = p.laneValues(rows), of_weight = p.laneValues(sums), of_bias = p.laneValues(sums);
  const auto all = [&](const std::vector<int32_t>& lanes, std::vector<int64_t> sizes) {
    sizes[0] *= kLanes;
    return p.viewOf(lanes[0], 0, f32(sizes));
  };
  for (int64_t lane = 0; lane < kLanes; ++lane)
    p.ofLane(lane, "aten::native_layer_norm",
             {Arg::id(x), Arg::intList({kWidth}), Arg::id(weight), Arg::id(bias), Arg::real(1e-5)},
             {y[lane], mean[lane], scale[lane]});
  p.op("aten::native_layer_norm_backward",
       {Arg::id(p.allOf(gradient)), Arg::id(p.allOf(x)), Arg::intList({kWidth}), Arg::id(all(mean, {kRows, 1})),
        Arg::id(all(scale, {kRows, 1})), Arg::id(weight), Arg::id(bias), boolList({1, 1, 1})},
       {all(of_x, {kRows, kWidth}), all(of_weight, {kWidth}), all(of_bias, {kWidth})})
      .joins = kLanes;
  for (int64_t lane = 0; lane < kLanes; ++lane)
    p.ofLane(lane, "aten::native_layer_norm_backward",
             {Arg::id(gradient), Arg::id(x), Arg::intList({kWidth}), Arg::id(mean[lane]), Arg::id(scale[lane]),
              Arg::id(weight), Arg::id(bias), boolList({1, 1, 1})},
             {of_x[lane], of_weight[lane], of_bias[lane]});
  const std::array<std::vector<int32_t>, 3> made = {of_x, of_weight, of_bias};
  for (const std::vector<int32_t>& lanes : made) {
    const int32_t to = p.output(p.executable.slots[lanes[0]].type);
    for (int64_t lane = 0; lane < kLanes; ++lane) p.ofLane(lane, "abele::emit", {Arg::id(to), Arg::id(lanes[lane])});
  }
  ASSERT_EQ(exe::verify(p.executable), std::vector<std::string>{});
  Runner runner(p);
  runner.backend().upload(0, w);
  runner.backend().upload(1, b);
  for (int step = 0; step < 3; ++step) {
    const std::vector<at::Tensor> batch = {at::randn({kMicroBatches * kRows, kWidth}),
                                           at::randn({kMicroBatches * kRows, kWidth})};
    const auto found = runner.step(batch);
    for (int64_t k = 0; k < kMicroBatches; ++k) {
      const at::Tensor part = batch[0].chunk(kMicroBatches)[k], grad = batch[1].chunk(kMicroBatches)[k];
      const auto [unused, m, s] = at::native_layer_norm(part, {kWidth}, w, b, 1e-5);
      const auto [input, of_w, of_b] =
          at::native_layer_norm_backward(grad, part, {kWidth}, m, s, w, b, {true, true, true});
      EXPECT_TRUE(sameBits(found[0][k], input));
      EXPECT_TRUE(sameBits(found[1][k], of_w));
      EXPECT_TRUE(sameBits(found[2][k], of_b));
    }
    std::map<std::string, int> calls = callsOf(runner, batch);
    const int64_t expected = processor() == Processor::kAvx512 ? 2 * kActions : kMicroBatches;
    EXPECT_EQ(calls["aten::native_layer_norm_backward"], expected);
  }
}

}  // namespace
}  // namespace abele::runtime::testing
