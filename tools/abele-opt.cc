// Reads a graph as text, runs passes over it and prints it. For golden tests and for looking at what Abele does.
#include <CLI/CLI.hpp>
#include <charconv>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "passes/stage_count.h"

namespace {

using namespace abele;

struct Arguments {
  std::string file = "-";
  std::vector<std::string> passes, disabled;
  bool no_passes = false, print_after_all = false, list_passes = false, count_stages = false, quiet = false;
  bool auto_increment = false, sharded = false, recompute = false, recompute_last_stage = false,
       split_weight_gradients = false;
  std::string verify, optimizer = "none";
  double max_grad_norm = 0;
  std::vector<std::string> stages;
  std::vector<ir::NodeId> cuts;
  std::vector<ir::ValueId> kept;
};

[[noreturn]] void refuse(std::string what, std::string expected) {
  throwUser(ErrorCode::E0901, {.what = std::move(what), .expected = std::move(expected), .remedy = "abele-opt --help"});
}

std::string readAll(const std::string& file) {
  if (file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(cat("cannot read ", file), "a file with a graph, or - for standard input");
  return {std::istreambuf_iterator<char>(in), {}};
}

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

passes::PassContext makeContext(const Arguments& arguments, const ir::Graph& graph) {
  using Rules = passes::OptimizerRules;
  passes::PassContext context;
  if (arguments.auto_increment) context.stages.auto_stage = passes::AutoStage::kAutoIncrement;
  context.stages.ordered = !arguments.sharded;
  if (!arguments.cuts.empty()) context.stages.auto_stage = passes::AutoStage::kAutoSplit;
  context.stages.cuts = arguments.cuts;
  context.recompute = {
      .enabled = arguments.recompute, .last_stage = arguments.recompute_last_stage, .kept = arguments.kept};
  for (ir::ValueId kept : arguments.kept)
    if (kept < 0 || static_cast<size_t>(kept) >= graph.values.size())
      refuse(cat("--keep names the value %", kept), cat("an id below ", graph.values.size()));
  for (const std::string& text : arguments.stages) context.stages.stages.push_back(parseStage(text));
  const std::string& optimizer = arguments.optimizer;
  if (optimizer == "sgd" || optimizer == "sgd-momentum")
    context.optimizer.kind = Rules::Kind::kSgd;
  else if (optimizer == "adam")
    context.optimizer.kind = Rules::Kind::kAdam;
  else if (optimizer == "adamw")
    context.optimizer.kind = Rules::Kind::kAdamW;
  else if (optimizer == "rmsprop")
    context.optimizer.kind = Rules::Kind::kRmsprop;
  else if (optimizer == "lamb")
    context.optimizer.kind = Rules::Kind::kLamb;
  else if (optimizer != "none")
    refuse(cat("there is no optimizer ", optimizer), "none, sgd, sgd-momentum, adam, adamw, rmsprop or lamb");
  context.optimizer.groups = {{.momentum = optimizer == "sgd-momentum"}};
  if (arguments.max_grad_norm > 0) context.optimizer.max_grad_norm = arguments.max_grad_norm;
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

void run(const Arguments& arguments) {
  if (arguments.list_passes) return listPasses();
  ir::Graph graph = ir::parse(readAll(arguments.file));
  if (!arguments.verify.empty()) ir::requireValid(graph, parseForm(arguments.verify), /*from_user=*/true);
  if (!arguments.no_passes) {
    passes::PassContext context = makeContext(arguments, graph);
    passes::PipelineOptions options{.passes = arguments.passes, .disabled = arguments.disabled};
    if (options.passes.empty())
      options.passes = passes::defaultPipeline({.training = graph.training,
                                                .recomputes = arguments.recompute,
                                                .splits_weight_gradients = arguments.split_weight_gradients});
    if (arguments.print_after_all)
      options.after_pass = [](const std::string& pass, const ir::Graph& after) {
        std::cout << "# after " << pass << "\n" << ir::print(after) << "\n";
      };
    passes::runPipeline(graph, context, options);
  }
  if (!arguments.quiet && !arguments.print_after_all) std::cout << ir::print(graph);
  if (arguments.count_stages) std::cout << "# forward stages: " << passes::forwardStageCount(graph) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs passes over a graph in text form and prints the result.", "abele-opt");
  app.add_option("file", arguments.file, "file with the graph; - or nothing: standard input");
  app.add_option("--passes", arguments.passes, "passes in order; nothing: the default pipeline")->delimiter(',');
  app.add_flag("--no-passes", arguments.no_passes, "only read, verify and print");
  app.add_option("--disable", arguments.disabled, "pass, or pass:n for its n-th occurrence")->delimiter(',');
  app.add_flag("--print-after-all", arguments.print_after_all, "print the graph after each pass");
  app.add_flag("--list-passes", arguments.list_passes, "name all passes and stop");
  app.add_option("--verify", arguments.verify, "first check the graph against this form");
  app.add_flag("--auto-increment", arguments.auto_increment, "blocks are numbered as stages in the order of the code");
  app.add_option("--stages", arguments.stages, "explicit stages: block+block@device,...")->delimiter(',');
  app.add_option("--cuts", arguments.cuts, "AutoSplit: ids of nodes that begin stages, ascending")->delimiter(',');
  app.add_flag("--sharded", arguments.sharded, "stages need not follow the data flow");
  app.add_option("--optimizer", arguments.optimizer,
                 "none, sgd, sgd-momentum, adam, adamw, rmsprop, lamb; for all parameters");
  app.add_option("--max-grad-norm", arguments.max_grad_norm, "clip gradients to this norm together");
  CLI::Option* recompute =
      app.add_flag("--recompute", arguments.recompute, "backward makes values again, in all stages but the last");
  app.add_flag("--recompute-last-stage", arguments.recompute_last_stage, "in the last stage too")->needs(recompute);
  app.add_option("--keep", arguments.kept, "ids of values that are kept all the same")
      ->delimiter(',')
      ->needs(recompute);
  app.add_flag("--split-weight-gradients", arguments.split_weight_gradients, "as for zero-bubble schedules");
  app.add_flag("--count-stages", arguments.count_stages, "also print the number of forward stages");
  app.add_flag("--quiet", arguments.quiet, "do not print the graph");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    UserError refused(ErrorCode::E0901, {.what = error.what(), .remedy = "abele-opt --help"});
    std::cerr << refused.what() << "\n";
    return 1;
  }
  try {
    run(arguments);
  } catch (const Error& error) {
    std::cout.flush();
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
