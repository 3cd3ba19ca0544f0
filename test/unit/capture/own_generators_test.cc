// The program's own generators become streams, and do not advance while forward is captured.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/own_generator.h"
#include "capture/capture.h"

namespace abele::capture {
namespace {

using DrawingForward = std::function<at::Tensor(at::Generator&)>;

struct Captured {
  Recording recording;
  std::string code = "none";
};

Captured captureWith(at::Generator& generator, const DrawingForward& forward, bool is_known = true) {
  Request request;
  if (is_known) request.generators = {generator};
  request.forward = [&](const std::vector<at::Tensor>&) { return std::vector<at::Tensor>{forward(generator)}; };
  const at::Tensor before = generator.get_state();
  Captured captured;
  try {
    captured.recording = capture(request);
  } catch (const Error& error) {
    captured.code = errorCodeText(error.code());
  }
  EXPECT_TRUE(at::equal(generator.get_state(), before));
  return captured;
}

at::Tensor drawn(at::Generator& generator, int64_t count) { return at::zeros({count}).uniform_(0, 1, generator); }

TEST(OwnGenerators, HaveStreamsOfTheirOwn) {
  at::Generator generator = at::detail::createCPUGenerator(5);
  const Captured captured =
      captureWith(generator, [](at::Generator& g) { return drawn(g, 3) + at::zeros({3}).normal_(0, 1, g); });
  ASSERT_EQ(captured.code, "none");
  ASSERT_EQ(captured.recording.own_streams.size(), 1u);
  const OwnStream& stream = captured.recording.own_streams[0];
  EXPECT_TRUE(stream.generator == generator && !stream.restarts);
  EXPECT_EQ(stream.draws, 3);
  EXPECT_EQ(stream.normals.count, 3);
  EXPECT_EQ(captured.recording.graph.random_draws, 0);
  int64_t named = 0;
  for (const ir::Node& node : captured.recording.graph.nodes) named += ownGenerator(node.args) == 1 ? 1 : 0;
  EXPECT_EQ(named, 2);
}

TEST(OwnGenerators, ThatForwardSeedsBeginAnew) {
  for (const uint64_t seed : {4, 5}) {  // one of them is its present seed
    at::Generator generator = at::detail::createCPUGenerator(5);
    const Captured captured = captureWith(generator, [&](at::Generator& g) {
      g.set_current_seed(seed);
      return drawn(g, 3);
    });
    ASSERT_EQ(captured.code, "none");
    ASSERT_EQ(captured.recording.own_streams.size(), 1u);
    EXPECT_TRUE(captured.recording.own_streams[0].restarts);
    at::Generator start = captured.recording.own_streams[0].start.clone();
    at::Generator expected = at::detail::createCPUGenerator(seed);
    EXPECT_TRUE(at::equal(drawn(start, 3), drawn(expected, 3)));
  }
}

TEST(OwnGenerators, WhoseNumbersCannotBeDrawnAgainAreRefused) {
  at::Generator generator = at::detail::createCPUGenerator(5);
  at::Generator moved = at::detail::createCPUGenerator(6);
  drawn(moved, 2);
  const at::Tensor state = moved.get_state();
  const auto draw = [](at::Generator& g) { return drawn(g, 3); };
  EXPECT_EQ(captureWith(generator, draw, /*is_known=*/false).code, "E0106");
  EXPECT_EQ(captureWith(generator,
                        [&](at::Generator& g) {
                          g.set_state(state);
                          return drawn(g, 3);
                        })
                .code,
            "E0106");
  EXPECT_EQ(captureWith(generator,
                        [](at::Generator& g) {
                          at::Tensor numbers = drawn(g, 3);
                          g.set_current_seed(9);
                          return numbers;
                        })
                .code,
            "E0106");
}

}  // namespace
}  // namespace abele::capture
