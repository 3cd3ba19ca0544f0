#include "capture/draws.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>

#include "base/error.h"
#include "base/log.h"
#include "base/own_generator.h"
#include "capture/arguments.h"
#include "capture/dispatch_mode.h"

namespace abele::capture {
namespace {

/// More 32-bit draws than an operator over this many elements could need.
int64_t drawLimit(const std::string& op, const torch::jit::Stack& stack) {
  if (op.starts_with("abele_op::")) return int64_t{1} << 32;  // a loop of ours may draw any number of times
  int64_t elements = 0;
  forEachTensorOf(stack, [&](const at::Tensor& t) { elements += t.numel(); });
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

/// What the device's stream lends.
at::Generator lentOn(c10::Device device) {
  const at::Generator& generator = at::globalContext().defaultGenerator(device);
  return device.is_cpu() ? capture::copyOf(generator) : generator;
}

std::optional<BodyDraws>& told() {
  thread_local std::optional<BodyDraws> draws;
  return draws;
}

}  // namespace

void tellDraws(const BodyDraws& draws) { told() = draws; }

Message seededText(const std::string& at) {
  return {.what = "a random operator outside the model's random stream",
          .at = at,
          .found = "a generator that was seeded or replaced inside forward",
          .remedy = cat("seed before the call (", inLanguage("abele::Options::randomSeed, torch::manual_seed"),
                        "), not in forward")};
}

bool Draws::mayDraw(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) || generatorArgument(op) >= 0;
}

Draws::Draws(const Request& request, Position* position, NodeRecorder* nodes, RunOperator decompose)
    : request_(request),
      stream_(lentOn(position->device), request.generator,
              copyOf(at::globalContext().defaultGenerator(position->device))),
      position_(*position),
      nodes_(*nodes),
      decompose_(std::move(decompose)) {
  if (position->device.is_cpu()) mark_.emplace(&stream_);
  for (const at::Generator& generator : request.generators) {
    before_.push_back(copyOf(generator));
    if (!isDefault(generator)) mark(generator);
  }
}

Draws::~Draws() {
  for (size_t i = 0; i < before_.size(); ++i)
    if (!isDefault(request_.generators[i])) unmark(request_.generators[i], before_[i]);
}

bool Draws::isDefault(const at::Generator& generator) const {
  return generator == stream_.generator() || generator == at::globalContext().defaultGenerator(position_.device);
}

/// Moves the stream back where the program has put the default generator back.
void Draws::followDefault() {
  if (!mark_ || mark_->follow() || !seeded_at_.empty()) return;
  seeded_at_ = position_.str();
  log::warn(
      "torch's default generator was seeded, or given a state from elsewhere, while forward was captured: if forward "
      "did so, it has no effect, for it draws from the stream of the device: use ",
      inLanguage("Options::randomSeed"));
}

void Draws::lendGenerator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  number_ = 0;
  followDefault();
  const int index = generatorArgument(op);
  if (index < 0) return;
  c10::IValue& generator = argumentAt(op, *stack, static_cast<size_t>(index));
  const bool is_own =
      generator.isGenerator() && generator.toGenerator().defined() && !isDefault(generator.toGenerator());
  position_.moveHere();
  if (is_own)
    number_ = numberOf(generator.toGenerator());
  else
    generator = stream_.generator();
}

int64_t Draws::numberOf(const at::Generator& generator) {
  for (size_t i = 0; i < own_.size(); ++i)
    if (own_[i].stream->generator() == generator) return static_cast<int64_t>(i) + 1;
  return addOwn(generator);
}

int64_t Draws::addOwn(const at::Generator& generator) {
  const auto require = [&](bool holds, const std::string& found, const std::string& expected) {
    ABELE_REQUIRE(
        holds, E0106,
        {.what = "random numbers from a generator of the program",
         .at = position_.str(),
         .found = found,
         .expected = expected,
         .remedy = cat("leave the generator out and seed the stream (", inLanguage("abele::Options::randomSeed"),
                       "), or draw the numbers before the call and pass them as an input")});
  };
  require(position_.device.is_cpu() && generator.device().is_cpu(),
          cat("a generator of ", generator.device().str(), ", and a program on ", position_.device.str()),
          "devices of the CPU, where generators have their states");
  require(!request_.is_nested, "a generator inside the body of a loop or a branch", "a generator outside of bodies");
  size_t known = 0;
  while (known < request_.generators.size() && request_.generators[known] != generator) ++known;
  require(known < request_.generators.size(), inLanguage("an at::Generator, of which nobody knows who seeds it"),
          inLanguage("the default generator, which is the device's stream of random numbers"));
  const bool restarts = !isMarked(generator), is_known = !restarts || isFreshlySeeded(generator);
  // From here on its state is put back, whatever comes.
  own_.push_back(
      {std::make_unique<RandomStream>(generator, nullptr, before_[known]), restarts, position_.where.source});
  require(is_known, "a generator whose state forward has replaced",
          "a generator that forward does not change, or seeds with a number before it draws");
  return static_cast<int64_t>(own_.size());
}

void Draws::record(const c10::OperatorHandle& op, torch::jit::Stack* stack, NodeRecorder::Call& call) {
  RandomStream& stream = streamNow();
  const int generator = generatorArgument(op);
  const bool names_generator = generator >= 0;
  if (number_ > 0) call.args[static_cast<size_t>(generator)].i = number_;
  const size_t rest = stack->size() - numArguments(op);
  torch::jit::Stack again(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stream.before();
  const std::optional<RandomStream::Place> place = stream.place();
  const std::optional<double> spare = stream.spareBefore();
  told().reset();
  const bool tries = !names_generator && !stream.hasOffsets();
  {
    is_trying_ = tries;
    const auto tried = c10::make_scope_exit([this] { is_trying_ = false; });
    nodes_.run(op, stack, call, tries ? decompose_ : RunOperator());
  }
  const std::optional<BodyDraws> said = std::exchange(told(), std::nullopt);
  const int64_t draws = stream.drawsSince(drawLimit(position_.op_name, *stack));
  const bool has_drawn = draws != 0 || stream.spareNow() != spare;
  if (has_drawn && number_ == 0 && mark_) mark_->put();
  const bool has_place = names_generator || stream.hasOffsets();
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
    if (is_random) stream.advance(drawn);
    if (nodes_.end(op, *stack, call) && number_ == 0) {
      recorded_.draws += drawn.draws;
      recorded_.normals.count += drawn.normals.count;
      recorded_.vary = recorded_.vary || drawn.vary;
    }
    return;
  }
  // No generator in the schema: what the kernel calls inside has one.
  stream.rewind();
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

// Operators that name no generator would find torch's default generator: what they call inside is given the stream's.
bool Draws::tryOut(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!is_trying_) return false;
  const int index = generatorArgument(op);
  if (index >= 0) {
    c10::IValue& generator = argumentAt(op, *stack, static_cast<size_t>(index));
    if (!generator.isGenerator() || !generator.toGenerator().defined() || isDefault(generator.toGenerator()))
      generator = stream_.generator();
  }
  if (isComposite(op) || (index < 0 && mayDraw(op)))
    decompose_(op, stack);
  else
    op.callBoxed(stack);
  return true;
}

void Draws::finish(Recording& recording) {
  ir::Graph& graph = recording.graph;
  const bool draws = recorded_.draws != 0 || recorded_.normals.count != 0;
  if (draws) followDefault();
  recording.seeded_at = seeded_at_;
  // The next micro-batch draws from here: before the last draw, if the program has put the stream back.
  const std::optional<RandomStream::Place> end = stream_.placeNow();
  requirePlace(end || !draws);
  const RandomStream::Place total = end.value_or(RandomStream::Place());
  graph.random_draws = total.draws;
  graph.normals = {.count = total.normals, .spare = total.spare};
  for (const Own& own : own_) {
    const std::optional<RandomStream::Place> end = own.stream->placeNow();
    ABELE_REQUIRE(end, E0106,
                  {.what = "forward seeds or replaces a generator of the program after it has drawn from it",
                   .at = own.at,
                   .expected = "a generator that forward does not change, or seeds with a number before it draws"});
    recording.own_streams.push_back({.generator = own.stream->generator(),
                                     .start = own.stream->start(),
                                     .restarts = own.restarts,
                                     .draws = end->draws,
                                     .normals = {.count = end->normals, .spare = end->spare}});
  }
  for (ir::Node& node : graph.nodes) {
    if (node.normals.count == 0 || node.normals.before != 0) continue;
    const int64_t number = ownGenerator(node.args);
    const OwnStream* own = number > 0 ? &recording.own_streams[static_cast<size_t>(number - 1)] : nullptr;
    if (!own)
      node.normals.spare = total.spare - total.draws;
    else if (!own->restarts)
      node.normals.spare = own->normals.spare - own->draws;
  }
}

void Draws::requirePlace(bool holds) const {
  if (!holds) throwUser(ErrorCode::E0106, seededText(position_.str()));
}

void Draws::requireAgain(bool holds) const {
  ABELE_REQUIRE(holds, E0106,
                {.what = "a random operator whose numbers cannot be drawn again",
                 .at = position_.str(),
                 .remedy = inLanguage("use torch::bernoulli, torch::rand_like, torch::randn_like or torch::dropout")});
}

/// Whether normal numbers are drawn one at a time shows in the spare, and in a second run that finds one where the
/// first had none, or the other way round.
BodyDraws Draws::drawnBy(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, int64_t draws) {
  constexpr int64_t kPair = 4;
  RandomStream& stream = streamNow();
  if (stream.hasOffsets()) return {.draws = draws};
  const Habit habit = habitOf(op);
  if (habit == Habit::kVaries) {
    const std::optional<int> training = op.schema().argumentIndexWithName("training");
    if (training && !arguments[static_cast<size_t>(*training)].toBool()) return {};  // rrelu
    // At least one: no two operators that vary have the same place.
    return {.draws = std::max<int64_t>(draws, 1), .vary = true};
  }
  const std::optional<double> before = stream.spareBefore(), now = stream.spareNow();
  if (now == before && (before || habit == Habit::kUniform || draws < kPair)) return {.draws = draws};

  torch::jit::Stack copies = arguments;
  const std::vector<bool> written = writtenArguments(op, position_.op_name, arguments);
  for (size_t i = 0; i < copies.size(); ++i)
    if (written[i] && copies[i].isTensor() && copies[i].toTensor().defined()) copies[i] = copyOf(copies[i].toTensor());
  const auto [other_draws, left] = stream.fromOtherSpare(draws + 2 * kPair, [&] {
    op.redispatchBoxed(c10::DispatchKeySet(c10::computeDispatchKey(at::kFloat, at::kStrided, position_.device)),
                       &copies);
  });
  const int64_t without = before ? other_draws : draws, with = before ? draws : other_draws;
  const std::optional<double> left_without = before ? left : now, left_with = before ? now : left;
  if (without == with && !left_without && left_with == RandomStream::kAnySpare) return {.draws = draws};
  const bool is_odd = left_without && !left_with && without == with + kPair;
  const bool is_even = !left_without && left_with && without == with;
  requireAgain(is_odd || is_even);
  const int64_t behind = stream.drawsBehindPair(is_odd ? *left_without : *left_with, without);
  requireAgain(behind >= 0);
  const int64_t others = behind + (without - behind) % kPair;
  return {.draws = others, .normals = {.count = (without - others) / 2 - (is_odd ? 1 : 0), .spare = others - behind}};
}

}  // namespace abele::capture
