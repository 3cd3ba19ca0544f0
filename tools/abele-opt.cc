// Reads a graph as text, runs passes over it, and prints the graph, its plan or its executable. Reads plans and
// executables too. For golden tests and for inspection.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "base/nearest.h"
#include "exe/build/build.h"
#include "ir/text.h"
#include "passes/bisect.h"
#include "passes/pass.h"
#include "passes/reduce.h"
#include "passes/stage_rules.h"
#include "plan/plan.h"
#include "schedule/schedule.h"
#include "tool.h"

namespace {

using namespace abele;

struct Arguments {
  std::string file = "-";
  std::vector<std::string> passes, disabled;
  bool no_passes = false, print_after_all = false, list_passes = false, count_stages = false, quiet = false;
  bool auto_increment = false, sharded = false, recompute = false, recompute_last_stage = false,
       split_weight_gradients = false, reorder_sums = false;
  std::string bisect, reduce;  // shell commands
  std::string from = "graph", emit, graph;
  std::string schedule;
  int64_t accumulation = 1, device_iterations = 1;
  std::string verify, optimizer = "none";
  double max_grad_norm = std::numeric_limits<double>::infinity();
  std::vector<std::string> stages;
  std::vector<ir::NodeId> cuts;
  std::vector<int> spaces;
  int group = 1;
  std::vector<ir::ValueId> kept;
};

[[noreturn]] void refuse(std::string what, std::string expected) {
  tools::refuse("abele-opt", std::move(what), std::move(expected));
}

std::string readAll(const std::string& file) { return tools::readAll("abele-opt", file, "a graph"); }

// "a+b@2": blocks a and b are one stage on device 2.
passes::StageRules::ExplicitStage parseStage(const std::string& text) {
  passes::StageRules::ExplicitStage stage;
  std::string_view rest = text;
  if (size_t at = rest.rfind('@'); at != std::string_view::npos) {
    std::string_view ipu = rest.substr(at + 1);
    auto [end, error] = std::from_chars(ipu.data(), ipu.data() + ipu.size(), stage.ipu);
    if (error != std::errc() || end != ipu.data() + ipu.size() || stage.ipu < 0)
      refuse(cat("--stages has the device ", ipu), "block+block@device, ...");
    rest = rest.substr(0, at);
  }
  while (true) {
    size_t plus = rest.find('+');
    stage.blocks.emplace_back(rest.substr(0, plus));
    if (plus == std::string_view::npos) return stage;
    rest.remove_prefix(plus + 1);
  }
}

void requireCuts(const std::vector<ir::NodeId>& cuts, const ir::Graph& graph) {
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (i > 0 && cuts[i] <= cuts[i - 1])
      refuse(cat("--cuts has ", cuts[i], " after ", cuts[i - 1]), "ascending ids of nodes");
    if (std::ranges::find(graph.nodes, cuts[i], &ir::Node::id) == graph.nodes.end())
      refuse(cat("--cuts names the node ", cuts[i]), "ids of nodes of the graph");
  }
}

passes::PassContext makeContext(const Arguments& arguments, const ir::Graph& graph) {
  requireCuts(arguments.cuts, graph);
  passes::PassContext context;
  if (arguments.auto_increment) context.stages.auto_stage = passes::AutoStage::kAutoIncrement;
  context.stages.ordered = !arguments.sharded;
  if (!arguments.cuts.empty()) context.stages.auto_stage = passes::AutoStage::kAutoSplit;
  context.stages.cuts = arguments.cuts;
  context.stages.spaces = arguments.spaces;
  context.stages.group = arguments.group;
  // Trials need LibTorch, which this tool lacks, so every cut counts as exact.
  context.gives_same_bits = [](const ir::Graph&, const ir::Graph&) { return true; };
  context.reorders_sums = arguments.reorder_sums;
  context.recompute = {
      .enabled = arguments.recompute, .last_stage = arguments.recompute_last_stage, .kept = arguments.kept};
  for (ir::ValueId kept : arguments.kept)
    if (kept < 0 || static_cast<size_t>(kept) >= graph.values.size())
      refuse(cat("--keep names the value %", kept), cat("an id below ", graph.values.size()));
  for (const std::string& text : arguments.stages) context.stages.stages.push_back(parseStage(text));
  const std::string& optimizer = arguments.optimizer;
  context.optimizer.kind = optimizerNamed(optimizer == "sgd-momentum" ? "sgd" : optimizer);
  if (context.optimizer.kind == OptimizerKind::kNone && optimizer != "none")
    refuse(cat("there is no optimizer ", optimizer), oneOf(optimizerNames({"none", "sgd-momentum"})));
  context.optimizer.groups = {{.momentum = optimizer == "sgd-momentum"}};
  const double norm = arguments.max_grad_norm;
  if (!(norm > 0)) refuse(cat("--max-grad-norm ", norm), "a positive number, or inf: gradients are not clipped");
  if (std::isfinite(norm) && context.optimizer.kind == OptimizerKind::kNone)
    refuse("--max-grad-norm without an optimizer", "--optimizer");
  context.optimizer.max_grad_norm = norm;
  for (const ir::External& external : graph.externals)
    if (external.kind == ir::InputKind::kParameter && external.trainable) context.optimizer.group_of[external.name] = 0;
  return context;
}

ir::Form parseForm(const std::string& name) {
  for (ir::Form form : {ir::Form::kCaptured, ir::Form::kNormal, ir::Form::kStaged, ir::Form::kLowered})
    if (ir::formName(form) == name) return form;
  refuse(cat("there is no form ", name), "captured, normal, staged or lowered");
}

void listPasses() {
  for (const passes::PassRow& row : passes::allPasses())
    std::cout << row.name << " (" << ir::formName(row.needs) << " -> " << ir::formName(row.gives) << ")\n    "
              << row.summary << "\n";
}

// The one that was asked for, or the usual one.
abele::schedule::ScheduleKind scheduleOf(const Arguments& arguments, const ir::Graph& graph) {
  abele::schedule::ScheduleKind schedule =
      graph.training ? abele::schedule::ScheduleKind::k1F1B : abele::schedule::ScheduleKind::kForward;
  if (!arguments.schedule.empty() && !abele::schedule::parseSchedule(arguments.schedule, schedule))
    refuse(cat("there is no schedule ", arguments.schedule), oneOf(abele::schedule::scheduleNames()));
  const abele::schedule::ScheduleTrait needed = graph.training ? abele::schedule::kTrains : abele::schedule::kInfers;
  if (!abele::schedule::hasTrait(schedule, needed))
    refuse(cat("the schedule ", arguments.schedule, " is not for ", graph.training ? "training" : "inference"),
           oneOf(abele::schedule::scheduleNames(needed)));
  return schedule;
}

passes::PipelineOptions pipelineOf(const Arguments& arguments, const ir::Graph& graph) {
  passes::PipelineOptions options{.passes = arguments.passes, .disabled = arguments.disabled};
  if (options.passes.empty())
    options.passes = passes::defaultPipeline(
        {.training = graph.training,
         .shards = arguments.group > 1,
         .recomputes = arguments.recompute,
         .splits_weight_gradients =
             arguments.split_weight_gradients || abele::schedule::splitsBackward(scheduleOf(arguments, graph)),
         .has_several_spaces = !arguments.spaces.empty()});
  return options;
}

// A shell command that answers questions about graphs: exit status 0 means yes. Each {} of the command is replaced by
// the name of a file with the graph; without {} the name is the last argument. Its output is dropped, because a search
// asks hundreds of times.
class Question {
 public:
  explicit Question(std::string command) : command_(std::move(command)) {
    std::string name = (std::filesystem::temp_directory_path() / "abele-opt-XXXXXX.air").string();
    const int file = mkstemps(name.data(), 4);
    if (file < 0) refuse(cat("cannot make the file ", name), "a folder for temporary files: TMPDIR names it");
    close(file);
    file_ = name;
    std::string text = command_;
    if (text.find("{}") == std::string::npos) text += " {}";
    for (size_t at = 0; (at = text.find("{}", at)) != std::string::npos; at += name.size() + 2)
      text.replace(at, 2, cat("'", name, "'"));
    line_ = cat("( ", text, "\n) >/dev/null 2>&1 </dev/null");
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question() { unlink(file_.c_str()); }

  bool operator()(const ir::Graph& graph) const {
    std::ofstream out(file_, std::ios::binary | std::ios::trunc);
    out << ir::print(graph);
    out.close();
    if (!out) refuse(cat("cannot write ", file_), "space for a graph: TMPDIR names the folder");
    const int status = std::system(line_.c_str());
    // Ctrl-C goes to the command while this program waits for it, so this program stops too.
    if (status < 0 || (WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGQUIT)))
      refuse(cat("the command was interrupted: ", command_), "an exit status");
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127))
      refuse(cat("the shell cannot run: ", command_), "a command whose exit status says yes (0) or no");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  std::string command_, file_, line_;
};

std::string commented(const std::string& text) {
  std::string out = "#   ";
  for (char c : text) out += c == '\n' ? std::string("\n#   ") : std::string(1, c);
  return out + "\n";
}

void bisect(const Arguments& arguments, const ir::Graph& graph) {
  using End = passes::Bisection::End;
  passes::PassContext context = makeContext(arguments, graph);
  const Question works(arguments.bisect);
  const passes::Bisection found =
      passes::bisectPipeline(graph, context, pipelineOf(arguments, graph), std::cref(works));
  if (found.end == End::kBrokenBefore)
    refuse("--bisect: the command fails for the graph as it is, before any pass", "a command that succeeds for it");
  if (found.end == End::kNeverBroken)
    refuse(cat("--bisect: the command succeeds after each of ", found.num_steps, " passes"),
           "a command that fails after one of them");
  const std::string name = cat(found.step.pass->name, ":", found.step.occurrence);
  std::cout << "# broken by " << name << ", pass " << found.position + 1 << " of " << found.num_steps << "\n";
  if (!found.error.empty()) std::cout << "# it throws\n" << commented(found.error);
  std::cout << "# what it is given:\n" << ir::print(found.before);
}

// The last form whose rules the graph keeps. A smaller version of the graph must keep the same form.
ir::Form formOf(const ir::Graph& graph) {
  ir::Form form = ir::Form::kCaptured;
  for (ir::Form next : {ir::Form::kNormal, ir::Form::kStaged, ir::Form::kLowered})
    if (ir::verify(graph, next).empty()) form = next;
  return form;
}

void reduce(const Arguments& arguments, const ir::Graph& graph) {
  const ir::Form form = arguments.verify.empty() ? formOf(graph) : parseForm(arguments.verify);
  ir::requireValid(graph, form, /*from_user=*/true);
  const Question shows(arguments.reduce);
  if (!shows(graph))
    refuse("--reduce: the command fails for the graph as it is", "a command that succeeds where the mistake shows");
  std::cout << ir::print(passes::reduceGraph(graph, form, std::cref(shows)));
}

// --- plan and executable ---------------------------------------------------------------------------------------------
plan::PlanOptions planOptionsOf(const Arguments& arguments, const ir::Graph& graph) {
  if (!graph.training && arguments.accumulation > 1) refuse("--accumulation for inference", "--device-iterations");
  tools::requireMicroBatches("abele-opt", arguments.device_iterations, arguments.accumulation);
  return {.schedule = scheduleOf(arguments, graph),
          .device_iterations = arguments.device_iterations,
          .accumulation = arguments.accumulation};
}

// Throws an error that lists the findings, if there are any. what: what is wrong with a plan that was read.
void requireNone(const std::vector<std::string>& findings, ErrorCode code, std::string what) {
  if (findings.empty()) return;
  std::string list;
  for (const std::string& finding : findings) list += cat(list.empty() ? "" : "\n", finding);
  throwUser(code, {.what = std::move(what),
                   .found = std::move(list),
                   .remedy = "start from what --emit=plan prints for this graph"});
}

void printExecutable(const ir::Graph& graph, const plan::Plan& plan) {
  const exe::Executable executable = exe::build(graph, plan);
  requireNone(exe::verify(executable), ErrorCode::E0501, "the plan makes an executable that cannot run");
  std::cout << exe::print(executable);
}

// Prints what --emit names, from a graph after the passes.
void emit(const Arguments& arguments, const ir::Graph& graph) {
  ir::requireValid(graph, graph.training ? ir::Form::kLowered : ir::Form::kStaged, /*from_user=*/true);
  if (graph.stages.empty()) refuse("the graph has no stages", "a graph that assign-stages has seen");
  const plan::Plan plan = plan::makePlan(graph, planOptionsOf(arguments, graph));
  if (arguments.emit == "plan")
    std::cout << plan::print(plan);
  else
    printExecutable(graph, plan);
}

void readPlan(const Arguments& arguments) {
  const plan::Plan plan = plan::parse(readAll(arguments.file));
  const bool makes_executable = arguments.emit == "executable";
  if (arguments.graph.empty()) {
    if (makes_executable) refuse("--from=plan --emit=executable", "--graph with the graph of the plan");
    std::cout << plan::print(plan);
    return;
  }
  const ir::Graph graph = ir::parse(readAll(arguments.graph));
  ir::requireValid(graph, graph.training ? ir::Form::kLowered : ir::Form::kStaged, /*from_user=*/true);
  const int num_stages = static_cast<int>(graph.stages.size());
  if (plan.worker_of.size() == graph.stages.size())
    requireNone(abele::schedule::verifySchedule(plan.schedule, num_stages, plan.options.accumulation, graph.training),
                ErrorCode::E0403, cat("the schedule of the plan ", arguments.file, " cannot run"));
  requireNone(plan::verify(plan, graph), ErrorCode::E0901,
              cat("the plan ", arguments.file, " is not of the graph ", arguments.graph));
  if (makes_executable)
    printExecutable(graph, plan);
  else
    std::cout << plan::print(plan);
}

// A plan or an executable has left the passes behind: no other option would do anything with it.
void requireMeaning(const CLI::App& app, const Arguments& arguments) {
  const std::string& from = arguments.from;
  if (from == "graph") {
    if (!arguments.graph.empty()) refuse("--graph with --from=graph", "--from=plan, whose graph it names");
    return;
  }
  std::vector<std::string> known = {"file", "--from", "--emit"};
  if (from == "plan") known.emplace_back("--graph");
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && std::ranges::find(known, option->get_name()) == known.end())
      refuse(cat(option->get_name(), " with --from=", from), oneOf(known));
  if (!arguments.emit.empty() && arguments.emit != from && arguments.emit != "executable")
    refuse(cat("--from=", from, " --emit=", arguments.emit), from == "plan" ? "plan or executable" : "executable");
}

void run(const CLI::App& app, const Arguments& arguments) {
  if (arguments.list_passes) return listPasses();
  requireMeaning(app, arguments);
  if (arguments.from == "plan") return readPlan(arguments);
  if (arguments.from == "executable") {
    std::cout << exe::print(exe::parse(readAll(arguments.file)));
    return;
  }
  ir::Graph graph = ir::parse(readAll(arguments.file));
  if (!arguments.reduce.empty()) return reduce(arguments, graph);
  if (!arguments.verify.empty()) ir::requireValid(graph, parseForm(arguments.verify), /*from_user=*/true);
  if (!arguments.bisect.empty()) return bisect(arguments, graph);
  if (!arguments.no_passes) {
    passes::PassContext context = makeContext(arguments, graph);
    passes::PipelineOptions options = pipelineOf(arguments, graph);
    if (arguments.print_after_all)
      options.after_pass = [](const std::string& pass, const ir::Graph& after) {
        std::cout << "# after " << pass << "\n" << ir::print(after) << "\n";
      };
    passes::runPipeline(graph, context, options);
  }
  if (arguments.emit == "plan" || arguments.emit == "executable")
    emit(arguments, graph);
  else if (!arguments.quiet && !arguments.print_after_all)
    std::cout << ir::print(graph);
  if (arguments.count_stages) std::cout << "# forward stages: " << passes::forwardStageCount(graph) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs passes over a graph in text form and prints the result.", "abele-opt");
  app.add_option("file", arguments.file, "file with the graph; - or nothing: standard input");
  CLI::Option* passes =
      app.add_option("--passes", arguments.passes, "passes in order; nothing: the default pipeline")->delimiter(',');
  CLI::Option* no_passes = app.add_flag("--no-passes", arguments.no_passes, "only read, verify and print");
  app.add_option("--disable", arguments.disabled, "pass, or pass:n for its n-th occurrence")->delimiter(',');
  app.add_flag("--print-after-all", arguments.print_after_all, "print the graph after each pass");
  app.add_flag("--list-passes", arguments.list_passes, "name all passes and stop");
  CLI::Option* bisect = app.add_option("--bisect", arguments.bisect,
                                       "name the first pass after which this command fails; {}: a file with the graph");
  bisect->excludes(no_passes);
  app.add_option("--reduce", arguments.reduce, "make the graph smaller while this command succeeds; {}: its file")
      ->excludes(bisect)
      ->excludes(passes);
  app.add_option("--from", arguments.from, "what the file holds: graph, plan or executable")
      ->check(CLI::IsMember({"graph", "plan", "executable"}));
  app.add_option("--emit", arguments.emit, "print this instead: plan or executable")
      ->check(CLI::IsMember({"graph", "plan", "executable"}));
  app.add_option("--graph", arguments.graph, "the file with the graph of a plan that is read");
  app.add_option("--schedule", arguments.schedule,
                 "of the plan; nothing: 1f1b, or forward for inference. Zero-bubble schedules split weight gradients");
  app.add_option("--accumulation", arguments.accumulation, "micro-batches of a weight update")
      ->check(CLI::Range(1, 65536));
  app.add_option("--device-iterations", arguments.device_iterations, "groups of them in a step")
      ->check(CLI::Range(1, 65536));
  app.add_option("--verify", arguments.verify, "first check the graph against this form");
  app.add_flag("--auto-increment", arguments.auto_increment, "blocks are numbered as stages in the order of the code");
  app.add_option("--stages", arguments.stages, "explicit stages: block+block@device,...")->delimiter(',');
  app.add_option("--cuts", arguments.cuts, "AutoSplit: ids of nodes that begin stages, ascending")->delimiter(',');
  app.add_flag("--sharded", arguments.sharded, "stages need not follow the data flow");
  app.add_option("--group", arguments.group, "devices of each of the program's devices; every cut counts as exact")
      ->check(CLI::PositiveNumber);
  app.add_option("--optimizer", arguments.optimizer,
                 cat(oneOf(optimizerNames({"none", "sgd-momentum"})), "; for all parameters"));
  app.add_option("--max-grad-norm", arguments.max_grad_norm, "clip gradients to this norm together");
  CLI::Option* recompute =
      app.add_flag("--recompute", arguments.recompute, "backward makes values again, in all stages but the last");
  app.add_flag("--recompute-last-stage", arguments.recompute_last_stage, "in the last stage too")->needs(recompute);
  app.add_option("--spaces", arguments.spaces,
                 "memory spaces of a process's devices; the next devices are the next one's")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--keep", arguments.kept, "ids of values that are kept all the same")
      ->delimiter(',')
      ->needs(recompute);
  app.add_flag("--split-weight-gradients", arguments.split_weight_gradients, "as for zero-bubble schedules");
  app.add_flag("--reorder-sums", arguments.reorder_sums, "sums may be added up in another order than eager's");
  app.add_flag("--count-stages", arguments.count_stages, "also print the number of forward stages");
  app.add_flag("--quiet", arguments.quiet, "do not print the graph");
  return tools::runTool(app, argc, argv, [&] { run(app, arguments); });
}
