// Times pipeline schedules on described costs, before anything runs: step time, waiting and memory for any number of
// devices. Reads costs as JSON (docs/simulator.md) or a lowered graph as text, whose costs it estimates.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "base/cat.h"
#include "base/error.h"
#include "base/nearest.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "plan/cost.h"
#include "plan/memory_report.h"
#include "plan/predict.h"
#include "split/auto_split.h"
#include "split/explain.h"
#include "tool.h"

namespace {

using namespace abele;

struct Arguments {
  std::string file = "-", trace, format = "table", machine;
  std::vector<std::string> schedules = {"1f1b"};
  std::vector<int> devices;
  std::vector<int64_t> micro_batches = {1}, replicas;
  int64_t device_iterations = 1, hop_ns = -1, device_bytes = 0;
  int chunks = 1;
  bool together = false, early = false;
  bool inference = false, chart = false, print_costs = false, explain = false;
};

[[noreturn]] void refuse(std::string what, std::string expected) {
  tools::refuse("abele-sim", std::move(what), std::move(expected));
}

std::string readAll(const std::string& file) { return tools::readAll("abele-sim", file, "costs or a graph"); }

// Cuts a graph without stages, again for every line of the table.
class AutoSplitter {
 public:
  explicit AutoSplitter(ir::Graph graph) : captured_(std::move(graph)), whole_(captured_) {
    lower(whole_, {});
    for (const ir::Node& node : whole_.nodes) knows_forward_ |= node.forward != ir::kNone;
  }

  bool training() const { return captured_.training; }

  /// explanation: null, or the stream for the reasons.
  /// like: a chain with the hop, machine and replicas to use.
  plan::Prediction predict(const plan::PredictOptions& options, int devices, const plan::Chain& like,
                           std::ostream* explanation) {
    const abele::split::SplitChain chain =
        abele::split::splitChain(whole_, abele::schedule::dealsRound(options.schedule) ? 2 * devices : devices);
    abele::split::SplitOptions split{.schedule = options.schedule,
                                     .devices = devices,
                                     .device_iterations = options.device_iterations,
                                     .accumulation = options.accumulation,
                                     .hop_ns = like.costs.hop_ns,
                                     .machine = like.machine,
                                     .replication = like.replication};
    abele::split::Split taken = abele::split::autoSplit(chain, split).front();
    if (explanation != nullptr) {
      ir::Graph staged = captured_;
      lower(staged, {.cuts = taken.node_ids, .devices = devices});
      plan::PlanOptions plan_options{.schedule = options.schedule,
                                     .device_iterations = options.device_iterations,
                                     .accumulation = options.accumulation};
      *explanation << abele::split::explainStages(staged, plan::makePlan(staged, plan_options), like.machine,
                                                  like.replication)
                   << abele::split::explainAlternatives(whole_, chain, split, taken);
      if (training() && !knows_forward_)
        *explanation << "no node of backward says to which forward node it belongs (of=): all of it is in the last "
                     << "stage. Capture the program with AutoSplit\n";
    }
    return std::move(taken.prediction);
  }

 private:
  static void lower(ir::Graph& graph, passes::StageRules rules) {
    passes::PassContext context{.stages = std::move(rules)};
    context.stages.auto_stage = passes::AutoStage::kAutoSplit;
    passes::runPipeline(graph, context);
  }

  ir::Graph captured_, whole_;
  bool knows_forward_ = false;
};

// Splits the costs of a graph, so that every schedule can be simulated.
plan::Chain chainOfGraph(ir::Graph graph, bool& training) {
  training = graph.training;
  ir::requireValid(graph, training ? ir::Form::kLowered : ir::Form::kStaged, /*from_user=*/true);
  passes::PassContext context;
  if (training) passes::splitWeightGradient(graph, context);
  return plan::chainOf(graph, {}, plan::estimateCosts(graph));
}

// The last three cells are for machines with links.
std::string row(const std::vector<std::string>& cells) {
  static constexpr int kWidth[] = {7, 13, 13, 12, 8, 11, 12, 9, 8, 14};
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const int width = kWidth[i] - static_cast<int>(cells[i].size());
    const std::string space(static_cast<size_t>(std::max(width, 1)), ' ');
    line += i == 1 ? " " + cells[i] + space : space + cells[i];
  }
  return line + "\n";
}

std::string number(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string tableRow(const plan::Prediction& p, const plan::MemoryLimits& limits, bool with_links) {
  double least = 1;
  for (const abele::schedule::WorkerTimes& w : p.run.workers)
    least = std::min(least, p.run.step_ns ? static_cast<double>(w.busy_ns) / static_cast<double>(p.run.step_ns) : 1);
  const auto devices = static_cast<int64_t>(p.device_of.size()) * p.replication.replicas;
  std::vector<std::string> cells = {cat(devices),
                                    abele::schedule::scheduleName(p.options.schedule),
                                    cat(p.options.accumulation),
                                    number(static_cast<double>(p.run.step_ns) / 1e6, 3),
                                    number(100 * p.run.bubble(), 1),
                                    number(100 * least, 1),
                                    number(static_cast<double>(p.peakBytes()) / (1 << 20), 1)};
  if (with_links) {
    int64_t busiest = 0, sums = 0;
    for (const abele::schedule::TransferTimes& t : p.run.transfers) busiest = std::max(busiest, t.busy_ns);
    for (int64_t ns : p.reduce_ns) sums = std::max(sums, ns);
    cells.push_back(cat(p.replication.replicas));
    cells.push_back(
        number(100 * static_cast<double>(busiest) / static_cast<double>(std::max<int64_t>(1, p.run.step_ns)), 1));
    cells.push_back(number(static_cast<double>(sums) / 1e6, 3));
  }
  std::string line = row(cells);
  if (const int64_t spare = plan::spareBytes(p, limits); spare < 0) {
    line.pop_back();
    line += cat("  does not fit: ", -spare, " bytes too many\n");
  }
  return line;
}

void writeTrace(const std::string& file, const plan::Prediction& prediction) {
  std::ofstream out(file, std::ios::binary);
  out << plan::chromeTrace(prediction);
  if (!out.flush()) refuse(cat("cannot write ", file), "a file that can be written");
}

void run(const Arguments& arguments) {
  if (arguments.format != "table" && arguments.format != "json")
    refuse(cat("there is no format ", arguments.format), "table or json");
  const std::string text = readAll(arguments.file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  bool training = !arguments.inference;
  plan::Chain chain;
  std::optional<AutoSplitter> splitter;
  if (first != std::string::npos && text[first] == '{') {
    chain = plan::parseChain(text);
  } else if (ir::Graph graph = ir::parse(text); graph.stages.empty() && !arguments.devices.empty()) {
    splitter.emplace(std::move(graph));
    training = splitter->training();
  } else if (graph.stages.empty()) {
    refuse("a graph without stages", "--devices, for which it is cut, or a graph with stages");
  } else {
    chain = chainOfGraph(std::move(graph), training);
  }
  if (!splitter && arguments.explain) refuse("--explain without an AutoSplit", "a captured graph, and --devices");
  if (splitter && (arguments.print_costs || arguments.chunks != 1))
    refuse("--print-costs or --chunks with a captured graph", "costs, or a graph with stages");
  if (arguments.hop_ns >= 0) chain.costs.hop_ns = arguments.hop_ns;
  if (!arguments.machine.empty())
    chain.machine =
        abele::schedule::parseMachine(tools::readAll("abele-sim", arguments.machine, "a description of a machine"));
  chain.replication.is_together |= arguments.together;
  chain.replication.is_early |= arguments.early;
  const bool with_links = chain.machine.hasLinks();
  const int64_t device_bytes = arguments.device_bytes > 0 ? arguments.device_bytes : chain.machine.device_bytes;
  const plan::MemoryLimits limits{device_bytes > 0 ? device_bytes : -1};
  if (!with_links && !arguments.replicas.empty())
    refuse("--replicas without links", "--machine, or \"machine\" in the costs: gradients are summed up on its links");
  if (arguments.print_costs) {
    std::cout << plan::chainJson(chain);
    return;
  }
  const bool json = arguments.format == "json";
  std::string separator = "[\n";
  std::vector<std::string> head = {"devices", "schedule",   "micro-batches", "step ms",
                                   "bubble%", "least use%", "peak MiB"};
  if (with_links) head.insert(head.end(), {"replicas", "link%", "gradients ms"});
  if (!json) std::cout << row(head);
  plan::Prediction last;
  std::ostringstream explanation;
  const auto tell = [&](int devices, const std::string& name, int64_t micro_batches) {
    plan::PredictOptions options;
    if (!abele::schedule::parseSchedule(name, options.schedule))
      refuse(cat("there is no schedule ", name), oneOf(abele::schedule::scheduleNames()));
    options.training = training && abele::schedule::hasTrait(options.schedule, abele::schedule::kTrains);
    options.device_iterations = options.training ? arguments.device_iterations : micro_batches;
    options.accumulation = options.training ? micro_batches : 1;
    tools::requireMicroBatches("abele-sim", options.device_iterations, options.accumulation);
    last = splitter ? splitter->predict(options, devices, chain, arguments.explain ? &explanation : nullptr)
                    : plan::predict(devices ? plan::deal(chain, devices, arguments.chunks) : chain, options);
    if (json)
      std::cout << separator << plan::predictionJson(last, limits);
    else
      std::cout << tableRow(last, limits, with_links);
    separator = ",\n";
    if (arguments.chart && !json) std::cout << abele::schedule::printSchedule(last.schedule);
  };
  for (int devices : arguments.devices.empty() ? std::vector<int>{0} : arguments.devices)
    for (int64_t replicas : arguments.replicas.empty() ? std::vector{chain.replication.replicas} : arguments.replicas) {
      chain.replication.replicas = replicas;
      for (const std::string& name : arguments.schedules)
        for (int64_t micro_batches : arguments.micro_batches) tell(devices, name, micro_batches);
    }
  if (json) std::cout << "\n]\n";
  std::cout << explanation.str();
  if (!arguments.trace.empty()) writeTrace(arguments.trace, last);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Predicts time, waiting and memory of pipeline schedules.", "abele-sim");
  app.add_option("file", arguments.file, "costs as JSON or a graph as text; - or nothing: standard input");
  app.add_option("--schedules", arguments.schedules, oneOf(abele::schedule::scheduleNames()))->delimiter(',');
  app.add_option("--devices", arguments.devices, "share the stages among so many devices; nothing: as the file says")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app.add_option("--chunks", arguments.chunks, "stages of each device, with --devices")->check(CLI::Range(1, 64));
  app.add_option("--micro-batches", arguments.micro_batches, "of an update (training) or a call (inference)")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  app.add_option("--device-iterations", arguments.device_iterations, "updates of a step")->check(CLI::Range(1, 65536));
  app.add_option("--hop-ns", arguments.hop_ns, "time of a value from device to device; nothing: as the file says");
  app.add_option("--machine", arguments.machine, "file that describes memories and links (docs/simulator.md)");
  app.add_option("--replicas", arguments.replicas, "copies of the whole pipeline, each on devices of its own")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  app.add_flag("--together", arguments.together, "replicas of a device are neighbours, not the devices of a replica");
  app.add_flag("--early-sums", arguments.early, "a stage sums up its gradients while others still work");
  app.add_option("--device-bytes", arguments.device_bytes, "memory of a device; marks what does not fit");
  app.add_flag("--inference", arguments.inference, "time forwards only");
  app.add_option("--format", arguments.format, "table or json");
  app.add_option("--trace", arguments.trace, "file for a Chrome trace of the last line");
  app.add_flag("--chart", arguments.chart, "draw each schedule, every action one slot long");
  app.add_flag("--explain", arguments.explain, "say why a captured graph is cut as it is; with --devices");
  app.add_flag("--print-costs", arguments.print_costs, "print the costs as JSON and stop");
  return tools::runTool(app, argc, argv, [&] { run(arguments); });
}
