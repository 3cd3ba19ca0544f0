#include "capture/draws.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include "base/error.h"
#include "capture/arguments.h"

namespace abele::capture {
namespace {

/// More 32-bit draws than an operator over this many elements could need.
int64_t drawLimit(const std::string& op, const torch::jit::Stack& stack) {
  if (op.starts_with("abele_op::")) return int64_t{1} << 32;  // a loop of ours may draw any number of times
  int64_t elements = 0;
  for (const c10::IValue& value : stack)
    forEachTensor(value, [&](int32_t, const at::Tensor& t) { elements += t.numel(); });
  return 64 * elements + 100000;
}

enum class Habit : uint8_t { kTriedOut, kUniform, kVaries };

Habit habitOf(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, Habit> habits = {
#define ABELE_RANDOM_OPERATOR(name, habit) {name, Habit::habit},
#include "capture/random_operators.def"
#undef ABELE_RANDOM_OPERATOR
  };
  const auto found = habits.find(op.schema().name());
  return found == habits.end() ? Habit::kTriedOut : found->second;
}

/// With the same strides: kernels draw in another way where there are gaps.
at::Tensor copyOf(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor.detach());
}

std::optional<BodyDraws>& told() {
  thread_local std::optional<BodyDraws> draws;
  return draws;
}

}  // namespace

void tellDraws(const BodyDraws& draws) { told() = draws; }

bool Draws::mayDraw(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) || generatorArgument(op) >= 0;
}

void Draws::lendGenerator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int index = generatorArgument(op);
  if (index < 0) return;
  c10::IValue& generator = argumentAt(op, *stack, static_cast<size_t>(index));
  const bool is_own =
      generator.isGenerator() && generator.toGenerator().defined() && generator.toGenerator() != stream_.generator();
  position_.moveHere();
  ABELE_REQUIRE(!is_own, E0106,
                {.what = "random numbers from a generator of the program's own",
                 .at = position_.str(),
                 .found = inLanguage("a torch.Generator, whose state the device does not have",
                                     "an at::Generator, whose state the device does not have"),
                 .expected = "the default generator, which is the device's stream of random numbers",
                 .remedy = cat("leave the generator out and seed the stream (",
                               inLanguage("poptorch.Options().randomSeed", "abele::Options::randomSeed"),
                               "), or draw the numbers before the call and pass them as an input")});
  generator = stream_.generator();
}

void Draws::record(const c10::OperatorHandle& op, torch::jit::Stack* stack, NodeRecorder::Call& call) {
  const bool names_generator = generatorArgument(op) >= 0;
  const size_t rest = stack->size() - numArguments(op);
  torch::jit::Stack again(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stream_.before();
  const std::optional<RandomStream::Place> place = stream_.place();
  const std::optional<double> spare = stream_.spareBefore();
  told().reset();
  nodes_.run(op, stack, call);
  const std::optional<BodyDraws> said = std::exchange(told(), std::nullopt);
  const int64_t draws = stream_.drawsSince(drawLimit(position_.op_name, *stack));
  const bool has_drawn = draws != 0 || stream_.spareNow() != spare;
  const bool has_place = names_generator || stream_.hasOffsets();
  requirePlace(draws >= 0 && (!has_drawn || place));
  if (has_place || !has_drawn) {
    BodyDraws drawn;
    if (names_generator || has_drawn) drawn = said ? *said : drawnBy(op, again, draws);
    const bool is_random = drawn.draws > 0 || drawn.normals.count > 0;
    requirePlace(!is_random || place);
    if (has_place && (names_generator || has_drawn)) {
      call.random_draws = drawn.draws;
      call.random_offset = place ? place->draws : 0;
      call.normals = {.count = drawn.normals.count, .before = place ? place->normals : 0};
      // The first of the micro-batch finds the spare of the one before: Draws::finish.
      if (drawn.normals.count > 0 && place->normals > 0) call.normals.spare = place->spare;
      call.draws_vary = drawn.vary;
    }
    call.varies = call.varies || is_random;
    if (is_random) stream_.advance(drawn);
    if (nodes_.end(op, *stack, call)) {
      recorded_.draws += drawn.draws;
      recorded_.normals.count += drawn.normals.count;
      recorded_.vary = recorded_.vary || drawn.vary;
    }
    return;
  }
  // No generator in the schema: what the kernel calls inside has one.
  stream_.rewind();
  stack->erase(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stack->insert(stack->end(), again.begin(), again.end());
  again.clear();
  const std::string name = position_.op_name;
  const BodyDraws before = recorded_;
  decompose_(op, stack);
  position_.op_name = name;
  const int64_t normals = recorded_.normals.count - before.normals.count;
  const int64_t found = recorded_.draws - before.draws + (normals > 0 ? drawsOfNormals(normals, spare.has_value()) : 0);
  requireAgain(recorded_.vary || found == draws);
}

void Draws::finish(ir::Graph& graph) const {
  const RandomStream::Place& total = stream_.total();
  graph.random_draws = total.draws;
  graph.normals = {.count = total.normals, .spare = total.spare};
  for (ir::Node& node : graph.nodes)
    if (node.normals.count > 0 && node.normals.before == 0) node.normals.spare = total.spare - total.draws;
}

void Draws::requirePlace(bool holds) const {
  ABELE_REQUIRE(holds, E0106,
                {.what = "a random operator outside the model's random stream",
                 .at = position_.str(),
                 .found = "a generator that was seeded or replaced inside forward",
                 .remedy = cat("seed before the call (",
                               inLanguage("poptorch.Options().randomSeed, torch.manual_seed",
                                          "abele::Options::randomSeed, torch::manual_seed"),
                               "), not in forward")});
}

void Draws::requireAgain(bool holds) const {
  ABELE_REQUIRE(holds, E0106,
                {.what = "a random operator whose numbers cannot be drawn again",
                 .at = position_.str(),
                 .remedy = inLanguage("use torch.bernoulli, torch.rand_like, torch.randn_like or "
                                      "torch.nn.functional.dropout",
                                      "use torch::bernoulli, torch::rand_like, torch::randn_like or torch::dropout")});
}

/// Whether normal numbers are drawn one at a time shows in the spare, and in a second run that finds one where the
/// first had none, or the other way round.
BodyDraws Draws::drawnBy(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, int64_t draws) {
  constexpr int64_t kPair = 4;
  if (stream_.hasOffsets()) return {.draws = draws};
  const Habit habit = habitOf(op);
  // At least one: no two operators that vary have the same place.
  if (habit == Habit::kVaries) return {.draws = std::max<int64_t>(draws, 1), .vary = true};
  const std::optional<double> before = stream_.spareBefore(), now = stream_.spareNow();
  if (now == before && (before || habit == Habit::kUniform || draws < kPair)) return {.draws = draws};

  torch::jit::Stack copies = arguments;
  const std::vector<bool> written = writtenArguments(op, position_.op_name, arguments);
  for (size_t i = 0; i < copies.size(); ++i)
    if (written[i] && copies[i].isTensor() && copies[i].toTensor().defined()) copies[i] = copyOf(copies[i].toTensor());
  const auto [other_draws, left] = stream_.fromOtherSpare(draws + 2 * kPair, [&] {
    op.redispatchBoxed(c10::DispatchKeySet(c10::computeDispatchKey(at::kFloat, at::kStrided, position_.device)),
                       &copies);
  });
  const int64_t without = before ? other_draws : draws, with = before ? draws : other_draws;
  const std::optional<double> left_without = before ? left : now, left_with = before ? now : left;
  if (without == with && !left_without && left_with == RandomStream::kAnySpare) return {.draws = draws};
  const bool is_odd = left_without && !left_with && without == with + kPair;
  const bool is_even = !left_without && left_with && without == with;
  requireAgain(is_odd || is_even);
  const int64_t behind = stream_.drawsBehindPair(is_odd ? *left_without : *left_with, without);
  requireAgain(behind >= 0);
  const int64_t others = behind + (without - behind) % kPair;
  return {.draws = others, .normals = {.count = (without - others) / 2 - (is_odd ? 1 : 0), .spare = others - behind}};
}

}  // namespace abele::capture
