// The error for programs that do not fit their devices' memory. It names remedies that were tried.
#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/joined.h"
#include "compile/lowering.h"
#include "compile/replication.h"
#include "exe/build/build.h"

namespace abele::compile {
namespace {

constexpr size_t kShownTensors = 5;
constexpr int kMostSmallerBatches = 5;

std::vector<int64_t> peaksOf(const exe::Executable& executable) {
  std::vector<int64_t> peaks;
  for (size_t w = 0; w < executable.workers.size(); ++w)
    peaks.push_back(exe::peakBytes(executable, static_cast<int32_t>(w)));
  return peaks;
}

int64_t spareOf(const exe::Executable& executable, const ProgramOptions& options) {
  std::vector<int> devices;
  for (const exe::WorkerProgram& worker : executable.workers) devices.push_back(worker.device);
  return plan::spareBytes(devices, peaksOf(executable), options.device_memory);
}

/// The worker with the largest deficit; -1 if everything fits.
int fullestWorker(const exe::Executable& executable, const ProgramOptions& options) {
  int fullest = -1;
  int64_t least = 0;
  const std::vector<int64_t> peaks = peaksOf(executable);
  for (size_t w = 0; w < peaks.size(); ++w) {
    const int64_t spare = options.device_memory.spare(executable.workers[w].device, peaks[w]);
    if (spare >= least) continue;
    least = spare;
    fullest = static_cast<int>(w);
  }
  return fullest;
}

struct Remedy {
  std::string text;
  int64_t spare_bytes = 0;  // negative: this many bytes are still missing
};

/// Lowers the same program with other options, to find those that fit.
class Remedies {
 public:
  Remedies(const ir::Graph& graph, const Captured& captured, const ProgramOptions& options, int64_t rows,
           const CaptureSmaller& capture_smaller)
      : graph_(graph), captured_(captured), options_(options), rows_(rows), capture_smaller_(capture_smaller) {}

  std::vector<Remedy> run() {
    const bool pipelined = options_.strategy == Strategy::kPipelined;
    if (options_.training && !options_.recompute && !options_.recompute_to_fit)
      add(pipelined ? "PipelinedExecution(...).recompute(\"fit\")"
                    : inLanguage("options.Popart().set(\"autoRecomputation\", 3)"),
          recomputing(options_));
    if (pipelined && options_.training && options_.schedule != schedule::ScheduleKind::k1F1B) {
      ProgramOptions other = options_;
      other.schedule = schedule::ScheduleKind::k1F1B;
      add(inLanguage("PipelinedExecution(...).schedule(Schedule::k1F1B)"), other);
    }
    addOffChip();
    addPhases();
    addSmallerBatches();
    const bool any = std::ranges::any_of(tried_, [](const Remedy& r) { return r.spare_bytes >= 0; });
    if (!any) addTogether();
    std::ranges::stable_sort(
        tried_, [](const Remedy& a, const Remedy& b) { return (a.spare_bytes >= 0) > (b.spare_bytes >= 0); });
    return tried_;
  }

 private:
  std::optional<int64_t> spareOf(const Captured& captured, const ProgramOptions& options) const {
    try {
      const ir::Graph graph = runPasses(captured, options);
      const plan::Plan plan = plan::makePlan(graph, planOptions(options));
      return compile::spareOf(exe::build(graph, plan, replicationOf(options)), options);
    } catch (const UserError&) {
      return std::nullopt;  // the program cannot run this way
    }
  }

  bool add(const std::string& text, const Captured& captured, const ProgramOptions& options) {
    const std::optional<int64_t> spare = spareOf(captured, options);
    if (spare) tried_.push_back({text, *spare});
    return spare && *spare >= 0;
  }
  bool add(const std::string& text, const ProgramOptions& options) { return add(text, captured_, options); }

  static ProgramOptions recomputing(ProgramOptions options) {
    (options.strategy == Strategy::kPipelined ? options.recompute_to_fit : options.recompute) = options.training;
    return options;
  }

  // Moves one class after another off chip, the cheapest in time first, until the rest fits.
  void addOffChip() {
    ProgramOptions other = options_;
    std::string setters;
    const auto move = [&](plan::TensorLocation& location, const char* setter) {
      if (location.off_chip) return false;
      location.off_chip = true;
      setters += cat(setters.empty() ? "" : ".", setter, "(off)");
      const std::optional<int64_t> spare = spareOf(captured_, other);
      if (!spare) return false;
      if (*spare >= 0 || &location == &other.locations.activations)
        tried_.push_back({cat(inLanguage("options.TensorLocations()."), setters,
                              " with off = TensorLocationSettings().useOnChipStorage(", inLanguage("false)")),
                          *spare});
      return *spare >= 0;
    };
    if (options_.training && move(other.locations.optimizer_state, "setOptimizerLocation")) return;
    if (options_.training && move(other.locations.accumulators, "setAccumulatorLocation")) return;
    if (move(other.locations.weights, "setWeightLocation")) return;
    move(other.locations.activations, "setActivationLocation");
  }

  // Tries the stages as phases of one device, if every operation is in a block.
  void addPhases() {
    if (options_.strategy != Strategy::kPipelined || graph_.stages.empty()) return;
    std::vector<std::vector<std::string>> blocks;
    std::set<int32_t> seen;
    for (const ir::Node& node : graph_.nodes) {
      if (node.direction != ir::Direction::kForward || node.is_view || node.stage < 0) continue;
      if (node.block == ir::kNone || graph_.blocks[node.block].user_id.empty()) return;
      if (!seen.insert(node.block).second) continue;
      if (static_cast<size_t>(node.stage) >= blocks.size()) blocks.resize(static_cast<size_t>(node.stage) + 1);
      blocks[node.stage].push_back(graph_.blocks[node.block].user_id);
    }
    std::erase_if(blocks, [](const auto& ids) { return ids.empty(); });
    if (blocks.size() < 2) return;
    ProgramOptions other = options_;
    other.strategy = Strategy::kSharded;
    other.recompute_to_fit = false;
    other.costs.clear();  // they describe other stages
    other.stages = {.spaces = options_.stages.spaces};
    other.stages.ordered = false;
    const plan::TensorLocation off{.off_chip = true};
    other.locations.weights = other.locations.optimizer_state = other.locations.accumulators = off;
    std::string text;
    for (size_t i = 0; i < blocks.size(); ++i) {
      other.stages.stages.push_back({.blocks = blocks[i], .ipu = -1, .phase = static_cast<int>(i)});
      const std::string ids = joined(blocks[i], [](const std::string& id) { return cat("\"", id, "\""); });
      text +=
          cat(text.empty() ? "" : ", ", blocks[i].size() > 1 ? cat(inLanguage("{Stage{"), ids, inLanguage("}}")) : ids);
    }
    add(cat("SerialPhasedExecution", inLanguage("{"), text, inLanguage("}")), other);
  }

  /// Splits the same rows into more micro-batches, by the factor `times`.
  ProgramOptions smaller(ProgramOptions options, int64_t times) const {
    (options.training ? options.gradient_accumulation : options.device_iterations) *= times;
    return options;
  }

  std::string smallerText(int64_t times) const {
    const ProgramOptions other = smaller(options_, times);
    return cat(options_.training
                   ? cat(inLanguage("options.Training().gradientAccumulation("), other.gradient_accumulation)
                   : cat(inLanguage("options"), ".deviceIterations(", other.device_iterations),
               ") for the same inputs: micro-batches of ", rows_ / times, " rows instead of ", rows_);
  }

  std::optional<Captured> capture(int64_t times) const {
    try {
      return capture_smaller_(smaller(options_, times));
    } catch (...) {
      return std::nullopt;  // forward does not take fewer rows
    }
  }

  void addSmallerBatches() {
    int tries = 0;
    for (int64_t times = 2; times <= rows_ && tries < kMostSmallerBatches; ++times) {
      if (rows_ % times != 0 || !capture_smaller_) continue;
      // Tries halves first, and single rows in the last attempt.
      if (++tries == kMostSmallerBatches) times = rows_;
      const std::optional<Captured> captured = capture(times);
      if (!captured) return;
      const bool last = times == rows_;
      const std::optional<int64_t> spare = spareOf(*captured, smaller(options_, times));
      if (spare && (*spare >= 0 || last)) tried_.push_back({smallerText(times), *spare});
      if (last) smallest_ = captured;
      if (spare && *spare >= 0) return;
    }
  }

  void addTogether() {
    ProgramOptions all = recomputing(options_);
    const plan::TensorLocation off{.off_chip = true};
    all.locations.weights = all.locations.optimizer_state = all.locations.accumulators = off;
    all.locations.activations = off;
    const char* text = options_.training ? "recomputation and everything off chip" : "everything off chip";
    if (options_.training && add(text, all)) return;
    if (smallest_) add(cat(text, ", with ", smallerText(rows_)), *smallest_, smaller(all, rows_));
  }

  const ir::Graph& graph_;
  const Captured& captured_;
  const ProgramOptions& options_;
  int64_t rows_;
  const CaptureSmaller& capture_smaller_;
  std::optional<Captured> smallest_;  // capture with micro-batches of one row
  std::vector<Remedy> tried_;
};

std::string listed(const std::vector<Remedy>& remedies, int64_t needed) {
  std::string text;
  for (const Remedy& r : remedies)
    text += cat(r.text,
                r.spare_bytes >= 0 ? cat(": fits, ", r.spare_bytes, " bytes to spare")
                                   : cat(": does not fit, ", -r.spare_bytes, " bytes are missing"),
                "\n");
  return text + cat("or ", needed, " bytes a device");
}

std::string whatIsWrong(int device, int64_t needed, int64_t available) {
  return cat("out of memory on device ", device, ": the plan needs ", needed, " bytes, ", available, " are available");
}

std::string expected() { return cat("no more than ", inLanguage("Options::"), "deviceMemoryLimit gives the device"); }

}  // namespace

void requireMemory(const exe::Executable& executable, const ir::Graph& graph, const plan::Plan& plan,
                   const Captured& captured, const ProgramOptions& options, int64_t rows,
                   const CaptureSmaller& capture_smaller) {
  const int worker = fullestWorker(executable, options);
  if (worker < 0) return;
  const std::vector<int64_t> peaks = peaksOf(executable);
  const size_t place = static_cast<size_t>(worker) % plan.device_of.size();  // position in its replica
  const plan::DeviceMemory memory = plan::reportMemory(graph, plan, kShownTensors).devices[place];
  std::string found;
  for (size_t c = 0; c < plan::kNumMemoryClasses; ++c)
    if (memory.by_class[c] > 0)
      found += cat(found.empty() ? "" : ", ", plan::memoryClassName(static_cast<plan::MemoryClass>(c)), " ",
                   memory.by_class[c]);
  found += " bytes; the largest tensors:";
  for (const plan::TensorMemory& t : memory.tensors) found += cat("\n", plan::describe(t));
  std::string at;
  for (size_t s = 0; s < graph.stages.size(); ++s)
    if (plan.worker_of[s] == static_cast<int>(place))
      at +=
          cat(at.empty() ? "" : ", ", "stage ", s, graph.stages[s].name.empty() ? "" : cat(" ", graph.stages[s].name));
  const int device = executable.workers[worker].device;
  const int64_t most = *std::ranges::max_element(peaks);
  throwUser(ErrorCode::E0405,
            {.what = whatIsWrong(device, peaks[worker], options.device_memory.of(device)),
             .at = at,
             .found = found,
             .expected = expected(),
             .remedy = listed(Remedies(graph, captured, options, rows, capture_smaller).run(), most)});
}

void requireMemory(const exe::Executable& executable, const ProgramOptions& options) {
  const int worker = fullestWorker(executable, options);
  if (worker < 0) return;
  const std::vector<int64_t> peaks = peaksOf(executable);
  const int device = executable.workers[worker].device;
  throwUser(ErrorCode::E0405,
            {.what = whatIsWrong(device, peaks[worker], options.device_memory.of(device)),
             .at = "a program that was compiled before",
             .expected = expected(),
             .remedy = cat("compile the model with this limit, which names what would fit, or give each device ",
                           *std::ranges::max_element(peaks), " bytes")});
}

}  // namespace abele::compile
