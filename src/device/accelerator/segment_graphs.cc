#include "device/accelerator/segment_graphs.h"

#include <algorithm>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/device_graphs.h"
#include "base/instructions.h"
#include "base/log.h"
#include "exe/instruction_slots.h"

// Torch has the class since 2.13; before that, graphs come from a lent maker.
#if __has_include(<ATen/accelerator/Graph.h>)
#include <ATen/accelerator/Graph.h>
#define ABELE_TORCH_HAS_GRAPHS 1
#else
#define ABELE_TORCH_HAS_GRAPHS 0
#endif

namespace abele::device {

namespace {

std::string kindOf(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

#if ABELE_TORCH_HAS_GRAPHS
class TorchGraph final : public DeviceGraph {
 public:
  void begin(Pool pool) override { graph_.capture_begin(pool, at::GraphCaptureMode::ThreadLocal); }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }
  Pool pool() const override { return graph_.pool(); }

 private:
  at::accelerator::Graph graph_;
};

bool torchHasGraphs(c10::DeviceType type) { return at::has_graph_impl(type); }
std::unique_ptr<DeviceGraph> newTorchGraph() { return std::make_unique<TorchGraph>(); }
#else
bool torchHasGraphs(c10::DeviceType) { return false; }
std::unique_ptr<DeviceGraph> newTorchGraph() { return nullptr; }
#endif

std::unique_ptr<DeviceGraph> newGraph(c10::DeviceType type) {
  const DeviceGraphMaker lent = lentDeviceGraphs(kindOf(type));
  return lent ? lent() : newTorchGraph();
}

}  // namespace

bool SegmentGraphs::isAvailable(c10::DeviceType type) {
  return torchHasGraphs(type) || lentDeviceGraphs(kindOf(type)) != nullptr;
}

namespace {

// A graph of one call saves no time.
constexpr std::size_t kFewest = 2;

template <class Fn>
void forEachSlot(const exe::Instruction& instruction, const Fn& fn) {
  exe::forEachOperand(instruction, fn);
  exe::forEachResult(instruction, fn);
}

// Instructions whose calls depend only on tensors and on what a Choice contains.
bool isOfDeviceAlone(OwnOp op) {
  switch (op) {
    case OwnOp::kCopy:
    case OwnOp::kTransfer:
    case OwnOp::kZero:
    case OwnOp::kEmit:
    case OwnOp::kAccumulate:
    case OwnOp::kAccumulateProduct:
    case OwnOp::kAccumulateRows:
    case OwnOp::kAdd: return true;
    default: return false;
  }
}

uint64_t addressOf(const at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0;
}

/// Older torch does not count the bytes of pools.
template <class Stats>
int64_t bytesOfPool(const Stats& stats, c10::MempoolId_t pool) {
  if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
    const auto found = stats.reserved_bytes_by_private_pools.find(pool);
    if (found == stats.reserved_bytes_by_private_pools.end()) return 0;
    return found->second[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
  }
  return 0;
}

void addOnce(std::vector<int32_t>& to, int32_t id) {
  if (std::ranges::find(to, id) == to.end()) to.push_back(id);
}

}  // namespace

SegmentGraphs::SegmentGraphs(const exe::Executable& executable, int32_t worker, int64_t process, const SlotTable& slots,
                             WorkerCalls& calls, RandomPosition& random, const c10::Stream& stream,
                             const StepProfile& profile, c10::MempoolId_t& pool)
    : executable_(executable),
      process_(process),
      slots_(slots),
      calls_(calls),
      random_(random),
      stream_(stream),
      profile_(profile),
      pool_(pool),
      segments_(executable.segments.size()) {
  for (const exe::Action& action : executable.workers[worker].actions) {
    const exe::Segment& segment = executable.segments[action.segment];
    Captures& captures = segments_[action.segment];
    // Updates read numbers of the host.
    if (!captures.pieces.empty() || segment.direction == exe::Direction::kUpdate) continue;
    findSlots(segment, captures);
    for (const exe::Instruction& instruction : segment.instructions)
      captures.runs_each_time.push_back(!canBeCaptured(instruction));
    cut(segment, captures);
  }
}

SegmentGraphs::~SegmentGraphs() = default;

int64_t SegmentGraphs::poolBytes(c10::Device device, c10::MempoolId_t pool) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator || pool == c10::MempoolId_t{0, 0}) return 0;
  return bytesOfPool(allocator->getDeviceStats(device.index()), pool);
}

void SegmentGraphs::findSlots(const exe::Segment& segment, Captures& captures) const {
  for (const exe::Instruction& instruction : segment.instructions)
    forEachSlot(instruction, [&](int32_t slot) {
      const int32_t group = executable_.slots[slot].group;
      const bool is_moved = executable_.groups[group].off_chip && !slots_.tensor(slot, 0).is_cpu();
      const auto is_of_group = [&](int32_t other) { return executable_.slots[other].group == group; };
      if (is_moved && std::ranges::none_of(captures.off_chip, is_of_group)) captures.off_chip.push_back(slot);
      addOnce(captures.groups, group);
      const exe::GroupKind kind = executable_.groups[group].kind;
      if (kind == exe::GroupKind::kInput) addOnce(captures.inputs, slot);
      if (kind == exe::GroupKind::kOutput) addOnce(captures.outputs, slot);
    });
}

bool SegmentGraphs::canBeCaptured(const exe::Instruction& instruction) const {
  if (isOwn(instruction.op) && !isOfDeviceAlone(ownOp(instruction.op))) return false;
  if (instruction.draws_vary || instruction.normals.count > 0) return false;
  bool is_on_device = true;
  forEachSlot(instruction, [&](int32_t slot) {
    const at::Tensor& tensor = slots_.tensor(slot, 0);
    is_on_device = is_on_device && !(tensor.defined() && tensor.is_cpu());
  });
  return is_on_device;
}

// The kernels of a graph draw one after the other from one place on. If the next draw is elsewhere, another graph
// begins.
void SegmentGraphs::cut(const exe::Segment& segment, Captures& captures) const {
  captures.pieces.clear();
  captures.taken.clear();
  int64_t next_draw = 0;
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    const exe::Instruction& instruction = segment.instructions[i];
    const bool is_captured = !captures.runs_each_time[i];
    Piece* last = captures.pieces.empty() ? nullptr : &captures.pieces.back();
    const bool jumps = last && last->first_draw && instruction.isRandom() && instruction.random_offset != next_draw;
    if (!last || last->is_captured != is_captured || (is_captured && jumps)) {
      captures.pieces.push_back({i, i, is_captured, nullptr});
      last = &captures.pieces.back();
    }
    last->end = i + 1;
    if (!instruction.isRandom()) continue;
    if (!last->first_draw) last->first_draw = &instruction;
    next_draw = instruction.random_offset + instruction.random_draws;
  }
  for (Piece& piece : captures.pieces)
    if (piece.end - piece.begin < kFewest) piece.is_captured = false;
}

SegmentGraphs::Choice SegmentGraphs::choiceOf(const Captures& captures, const runtime::ActionContext& context) const {
  const int32_t* const frames = calls_.state().frame_of_group;
  Choice choice{context.group_index == 0};
  for (const int32_t group : captures.groups) choice.push_back(static_cast<uint64_t>(frames[group]));
  for (const int32_t slot : captures.off_chip)
    choice.push_back(addressOf(slots_.tensor(slot, frames[executable_.slots[slot].group])));
  for (const int32_t slot : captures.inputs)
    choice.push_back(addressOf(slots_.tensor(slot, frames[executable_.slots[slot].group])));
  // Results that are added up also read the result of the micro-batch before.
  for (const int32_t slot : captures.outputs)
    for (int32_t frame = std::max(context.micro_batch - 1, 0); frame <= context.micro_batch; ++frame)
      choice.push_back(addressOf(slots_.tensor(slot, frame)));
  return choice;
}

void SegmentGraphs::runCalls(int32_t segment, std::size_t begin, std::size_t end) {
  calls_.runCalls(segment, begin, end, [](std::size_t, CallState&) {});
}

void SegmentGraphs::run(const runtime::ActionContext& context) {
  Captures& captures = segments_[context.segment];
  const bool has_graphs = std::ranges::any_of(captures.pieces, &Piece::is_captured);
  // A profiler has to see the operators one by one.
  if (!has_graphs || profile_.isOn()) return calls_.run(context, process_, [](std::size_t, CallState&) {});
  calls_.place(context, process_);
  const std::size_t count = executable_.segments[context.segment].instructions.size();
  Taken& taken = captures.taken[choiceOf(captures, context)];
  if (!std::exchange(taken.has_run, true)) return runCalls(context.segment, 0, count);
  taken.graphs.resize(captures.pieces.size());
  for (std::size_t i = 0; i < captures.pieces.size(); ++i) {
    const Piece piece = captures.pieces[i];
    if (!piece.is_captured) {
      runCalls(context.segment, piece.begin, piece.end);
      continue;
    }
    if (!taken.graphs[i]) {
      std::unique_ptr<DeviceGraph> graph = capture(context.segment, piece);
      if (!graph) return runCalls(context.segment, piece.begin, count);
      taken.graphs[i] = std::move(graph);
    }
    replay(*taken.graphs[i], piece);
  }
}

void SegmentGraphs::replay(DeviceGraph& graph, const Piece& piece) const {
  std::optional<LentDefault> lent;  // unset for a graph that draws nothing, which leaves the generator alone
  if (piece.first_draw) lent.emplace(random_, calls_.state().placeOf(*piece.first_draw), stream_);
  graph.replay();
}

bool SegmentGraphs::usesHost(const exe::Instruction& instruction) const {
  bool uses_host = false;
  forEachSlot(instruction, [&](int32_t slot) {
    const int32_t frame = calls_.state().frame_of_group[executable_.slots[slot].group];
    const at::Tensor& tensor = slots_.tensor(slot, frame);
    uses_host = uses_host || (tensor.defined() && tensor.is_cpu());
  });
  return uses_host;
}

std::unique_ptr<DeviceGraph> SegmentGraphs::capture(int32_t segment, const Piece& piece) {
  // Only the first run showed which results kernels leave on the host, where other kernels read them.
  for (std::size_t i = piece.begin; i < piece.end; ++i)
    if (usesHost(executable_.segments[segment].instructions[i])) {
      giveUp(segment, i, i + 1, "it has a tensor on the host");
      return nullptr;
    }
  // Needed even if nothing draws: torch allows one capture of a device's default generator at a time, and other draws
  // are not allowed meanwhile. The stream is needed because a capture begins by writing the numbers that all graphs
  // start from.
  const LentDefault lent(random_, piece.first_draw ? calls_.state().placeOf(*piece.first_draw) : RandomPlace(),
                         stream_);
  std::unique_ptr<DeviceGraph> graph = newGraph(stream_.device_type());
  std::optional<std::string> error;
  std::size_t begin = piece.begin, end = piece.end;
  try {
    graph->begin(pool_);
    try {
      calls_.runCalls(segment, piece.begin, piece.end, [&](std::size_t i, CallState&) { begin = i; });
    } catch (const std::exception& at_call) {
      error = at_call.what();
      end = begin + 1;
    }
    if (!error) begin = piece.begin;
    graph->end();
  } catch (const std::exception& of_graph) {
    if (!error) error = of_graph.what();
  }
  if (error) {
    giveUp(segment, begin, end, *error);
    return nullptr;
  }
  pool_ = graph->pool();
  return graph;
}

void SegmentGraphs::giveUp(int32_t segment, std::size_t begin, std::size_t end, const std::string& why) {
  const exe::Segment& of = executable_.segments[segment];
  log::info(of.name, ": ", of.instructions[begin].op, end - begin > 1 ? " and the operators after it" : "",
            " cannot be captured as a graph of the device and is enqueued each time: ",
            std::string_view(why).substr(0, why.find('\n')));
  Captures& captures = segments_[segment];
  std::fill(captures.runs_each_time.begin() + static_cast<std::ptrdiff_t>(begin),
            captures.runs_each_time.begin() + static_cast<std::ptrdiff_t>(end), true);
  cut(of, captures);
}

}  // namespace abele::device
