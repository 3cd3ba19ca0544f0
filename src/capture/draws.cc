#include "capture/draws.h"

#include <algorithm>

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

}  // namespace

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
  torch::jit::Stack again;
  if (!names_generator) again.assign(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stream_.before();
  const int64_t offset = stream_.offset();
  nodes_.run(op, stack, call);
  const int64_t draws = stream_.drawsSince(drawLimit(position_.op_name, *stack));
  ABELE_REQUIRE(draws >= 0 && (draws == 0 || offset >= 0), E0106,
                {.what = "a random operator outside the model's random stream",
                 .at = position_.str(),
                 .found = "a generator that was seeded or replaced inside forward",
                 .remedy = cat("seed before the call (",
                               inLanguage("poptorch.Options().randomSeed, torch.manual_seed",
                                          "abele::Options::randomSeed, torch::manual_seed"),
                               "), not in forward")});
  const bool has_place = names_generator || stream_.hasOffsets();
  if (has_place || draws == 0) {
    if (has_place && (names_generator || draws > 0)) {
      call.random_draws = draws;
      call.random_offset = std::max<int64_t>(offset, 0);
    }
    call.varies = call.varies || draws > 0;
    if (draws > 0) stream_.advance(draws);
    if (nodes_.end(op, *stack, call)) recorded_ += draws;
    return;
  }
  // No generator in the schema: what the kernel calls inside has one.
  stream_.rewind();
  stack->erase(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stack->insert(stack->end(), again.begin(), again.end());
  again.clear();
  const std::string name = position_.op_name;
  const int64_t before = recorded_;
  decompose_(op, stack);
  position_.op_name = name;
  ABELE_REQUIRE(recorded_ - before == draws, E0106,
                {.what = "a random operator whose numbers cannot be drawn again",
                 .at = position_.str(),
                 .remedy = inLanguage("use torch.bernoulli, torch.rand_like, torch.randn_like or "
                                      "torch.nn.functional.dropout",
                                      "use torch::bernoulli, torch::rand_like, torch::randn_like or torch::dropout")});
}

}  // namespace abele::capture
