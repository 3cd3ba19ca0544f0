#include "split/explain.h"

#include <algorithm>
#include <cstdio>

#include "base/cat.h"
#include "base/joined.h"
#include "plan/cost.h"
#include "schedule/machine_text.h"

namespace abele::split {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::ValueId;

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}
std::string inMebibytes(int64_t bytes) { return fixed(static_cast<double>(bytes) / (1 << 20), 3); }
std::string percent(double share) { return fixed(100 * share, 1); }

// "aten::addmm, encoder/layer.3 (train.py:88)". Unknown parts are left out.
std::string nodeText(const Node& node) {
  std::string text = node.op;
  if (!node.scope.empty()) text += cat(", ", node.scope);
  if (!node.source.empty()) text += cat(" (", node.source, ")");
  return text;
}

// Rows of cells. Numbers are aligned right; the last column is free text.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string str() const {
    std::string out;
    for (const auto& row : rows_) {
      for (size_t i = 0; i + 1 < row.size(); ++i) {
        size_t width = 0;
        for (const auto& other : rows_) width = std::max(width, other[i].size());
        out += cat("  ", std::string(width - row[i].size(), ' '), row[i]);
      }
      out += cat("  ", row.back(), "\n");
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

struct StageNodes {
  const Node *first = nullptr, *last = nullptr;  // forward nodes, without views
  int64_t handed_over = 0;  // bytes of forward values of earlier stages that this or a later stage reads
};

std::vector<StageNodes> stageNodes(const ir::Graph& graph) {
  std::vector<StageNodes> stages(graph.stages.size());
  std::vector<int32_t> made(graph.values.size(), kNone), read(graph.values.size(), kNone);
  for (const Node& node : graph.nodes) {
    if (node.is_view || node.direction != Direction::kForward) continue;
    StageNodes& stage = stages[node.stage];
    if (stage.first == nullptr) stage.first = &node;
    stage.last = &node;
    ir::forEachResult(node, [&](ValueId v) { made[v] = node.stage; });
    ir::forEachOperand(node, [&](ValueId v) {
      int32_t& last = read[graph.baseOf(v)];
      last = std::max(last, node.stage);
    });
  }
  for (size_t v = 0; v < made.size(); ++v)
    for (int32_t s = made[v] + 1; made[v] != kNone && s <= read[v]; ++s)
      stages[s].handed_over += graph.values[v].type.extentBytes();
  return stages;
}

std::string predictionText(const plan::Prediction& p) {
  const int64_t accumulation = p.options.accumulation, iterations = p.options.device_iterations;
  std::string text = cat(p.num_stages, p.num_stages == 1 ? " stage on " : " stages on ", p.device_of.size(),
                         p.device_of.size() == 1 ? " device, " : " devices, ",
                         schedule::scheduleName(p.options.schedule), ", ", iterations);
  if (p.options.training) text += cat(iterations == 1 ? " update of " : " updates of ", accumulation);
  const int64_t micro_batches = p.options.training ? accumulation : iterations;
  return cat(text, micro_batches == 1 ? " micro-batch" : " micro-batches", ": predicted step ",
             millisecondsText(p.run.step_ns), " ms, ", percent(p.run.bubble()), " % of it waiting\n");
}

std::string taskText(const plan::Task& task) {
  static constexpr const char* kName[] = {"forward", "backward", "weight gradients", "update"};
  return cat(kName[static_cast<size_t>(task.direction)], " of stage ", task.stage);
}

// Empty if all devices share one memory.
std::string transfersText(const plan::Prediction& p) {
  std::string out;
  if (!p.transfers.empty()) {
    Table table({"MiB", "ms alone", "on the link %", "waiting ms", "link", "handed over"});
    for (size_t i = 0; i < p.transfers.size(); ++i) {
      const schedule::Transfer& t = p.transfers[i];
      const schedule::TransferTimes& times = p.run.transfers[i];
      const double share =
          static_cast<double>(times.busy_ns) / static_cast<double>(std::max<int64_t>(p.run.step_ns, 1));
      table.add({inMebibytes(t.bytes), millisecondsText(t.time_ns), percent(share), millisecondsText(times.waiting_ns),
                 t.name, cat(taskText(t.from), " to ", taskText(t.to))});
    }
    out += table.str();
  }
  for (size_t s = 0; s < p.reduce_ns.size(); ++s)
    out += cat("  gradients of stage ", s, " over ", p.replication.replicas,
               " replicas: ", millisecondsText(p.reduce_ns[s]), " ms\n");
  return out;
}

std::string cutsText(const ir::Graph& graph, const SplitChain& chain, const Split& split) {
  const auto text = [&](size_t cut) { return nodeText(graph.nodes[chain.pieces[cut].first_position]); };
  return split.cuts.empty() ? "none" : joined(split.cuts, text, "; ");
}

}  // namespace

std::string millisecondsText(int64_t ns) { return fixed(static_cast<double>(ns) / 1e6, 3); }

std::string differenceText(int64_t ns, int64_t base_ns) {
  const double share = base_ns > 0 ? static_cast<double>(ns - base_ns) / static_cast<double>(base_ns) : 0;
  return cat(share >= 0 ? "+" : "", percent(share), " %");
}

std::string explainStages(const ir::Graph& graph, const plan::Plan& plan, const schedule::Machine& machine,
                          const schedule::Replication& replication) {
  const std::vector<schedule::StageCost> costs = plan::estimateCosts(graph);
  plan::Chain chain{.costs = plan::costModelOf(graph, plan, costs), .device_of = {}};
  for (int worker : plan.worker_of) chain.device_of.push_back(plan.device_of[worker]);
  if (machine.hasLinks()) {
    chain.machine = machine;
    chain.replication = replication;
    chain.handovers = plan::handoversOf(graph);
    if (graph.training) chain.gradient_bytes = plan::gradientBytes(graph);
  }
  const plan::PredictOptions options{plan.options.schedule, graph.training, plan.options.device_iterations,
                                     plan.options.accumulation};
  const plan::Prediction prediction = plan::predict(chain, options);
  std::string out = predictionText(prediction);
  if (machine.hasLinks()) out += cat("links (", machine.name, "): ", schedule::linksText(machine), "\n");
  Table table({"stage", "device", "forward ms", "backward ms", "update ms", "persistent MiB", "kept MiB x",
               "handed over MiB", "from .. to"});
  const std::vector<StageNodes> stages = stageNodes(graph);
  std::vector<bool> seen(plan.device_of.size(), false);
  for (size_t s = 0; s < stages.size(); ++s) {
    const size_t worker = static_cast<size_t>(plan.worker_of[s]);
    const std::string persistent = seen[worker] ? "" : inMebibytes(plan.persistent_bytes[worker]);
    seen[worker] = true;
    std::string kept = cat(inMebibytes(plan.stash_bytes[s]), " x ", plan.frames[s]);
    for (const plan::TaskRing& ring : plan.rings)
      if (ring.task.stage == static_cast<int32_t>(s)) kept += cat(" + ", inMebibytes(ring.bytes), " x ", ring.frames);
    table.add({cat(s), cat(plan.device_of[worker]), millisecondsText(costs[s].forward_ns),
               millisecondsText(costs[s].backward_ns + costs[s].weight_grad_ns), millisecondsText(costs[s].update_ns),
               persistent, kept, s > 0 ? inMebibytes(stages[s].handed_over) : "",
               stages[s].first ? cat(nodeText(*stages[s].first), " .. ", nodeText(*stages[s].last)) : "nothing"});
  }
  out += table.str();
  Table devices({"device", "busy ms", "waiting ms", "peak MiB", ""});
  for (size_t w = 0; w < prediction.device_of.size(); ++w) {
    const schedule::WorkerTimes& times = prediction.run.workers[w];
    devices.add({cat(prediction.device_of[w]), millisecondsText(times.busy_ns),
                 millisecondsText(prediction.run.step_ns - times.busy_ns), inMebibytes(times.peak_bytes), ""});
  }
  return out + devices.str() + transfersText(prediction);
}

std::string explainAlternatives(const ir::Graph& graph, const SplitChain& chain, const SplitOptions& options,
                                const Split& taken) {
  const int64_t step = taken.prediction.run.step_ns;
  std::string out = cat("cut at: ", cutsText(graph, chain, taken), "\n", "chosen among ", chain.pieces.size() - 1,
                        chain.pieces.size() == 2 ? " boundary" : " boundaries", " where the program may be cut\n");
  SplitOptions fixed_schedule = options;
  fixed_schedule.any_schedule = false;
  fixed_schedule.schedule = taken.schedule;
  Table table({"alternative", "step ms", "", ""});
  const auto add = [&](std::string what, const Split& split, std::string cuts) {
    const int64_t ns = split.prediction.run.step_ns;
    table.add({std::move(what), millisecondsText(ns), differenceText(ns, step), std::move(cuts)});
  };
  for (const Split& split : autoSplit(chain, fixed_schedule, /*alternatives=*/3))
    if (split.cuts != taken.cuts) add("next best cuts", split, cutsText(graph, chain, split));
  const int most = static_cast<int>(chain.pieces.size());
  std::vector<int> numbers = {1, options.devices / 2, options.devices - 1, options.devices + 1, 2 * options.devices};
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (int devices : numbers) {
    if (devices < 1 || devices > most || devices == options.devices) continue;
    SplitOptions other = fixed_schedule;
    other.devices = devices;
    add(cat(devices, devices == 1 ? " device" : " devices"), autoSplit(chain, other).front(), "");
  }
  if (chain.training && taken.schedule != schedule::ScheduleKind::kSharded)
    for (schedule::ScheduleKind schedule : trainingSchedules()) {
      if (schedule == taken.schedule) continue;
      SplitOptions other = fixed_schedule;
      other.schedule = schedule;
      add(cat("schedule ", schedule::scheduleName(schedule)), autoSplit(chain, other).front(), "");
    }
  return cat(out, table.str(), "these times and those of abele-sim's table are sums over pieces of the program, ",
             millisecondsText(step),
             " ms for the cuts taken; the step of the first line is predicted from the stages\n");
}

}  // namespace abele::split
