// Describes a recording to the host: arguments, results, stages, and the part that the cache keeps.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/joined.h"
#include "compile/compiler.h"
#include "compile/tensors.h"
#include "plan/liveness.h"

namespace abele::compile {

void describe(MadeProgram& compiled, const capture::Recording& recording, const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) compiled.input_types.push_back(typeOf(input));
  std::vector<int32_t> targets;
  for (const ir::Output& output : recording.graph.outputs)
    if (output.kind == ir::OutputKind::kResult) targets.push_back(output.target);
  for (size_t i = 0; i < recording.result_output.size(); ++i) {
    const int32_t output = recording.result_output[i];
    compiled.results.push_back({output == ir::kNone ? -1 : targets.at(output), typeOf(recording.results.at(i))});
  }
  compiled.host_results = recording.host_results;
  auto target = static_cast<int32_t>(compiled.results.size());
  for (const auto& [argument, value] : recording.written_arguments)
    compiled.written.push_back({argument, target++, recording.graph.values[value].type});
  compiled.constants = recording.constants;
  compiled.own_streams = recording.own_streams;
}

namespace {

bool isNumber(const std::string& text) { return text.find_first_not_of("0123456789") == std::string::npos; }

/// The id of the block, unless the id is only its number; otherwise the module.
std::string nameOf(const ir::Graph& graph, const ir::Node& node) {
  const auto block = static_cast<size_t>(node.block);
  if (node.block != ir::kNone && block < graph.blocks.size() && !isNumber(graph.blocks[block].user_id))
    return graph.blocks[block].user_id;
  std::string path = node.scope;
  std::ranges::replace(path, '/', '.');
  return path;
}

/// A name for each stage: its blocks or modules, at most three, otherwise the first and the last. If none has a name,
/// the stage's number.
std::vector<std::string> stageNames(const ir::Graph& graph) {
  constexpr size_t kMost = 3;
  std::vector<std::vector<std::string>> parts(graph.stages.size());
  std::vector<std::unordered_set<std::string>> seen(graph.stages.size());
  for (const ir::Node& node : graph.nodes) {
    const bool counts = node.direction == ir::Direction::kForward && !node.is_view && node.stage >= 0 &&
                        static_cast<size_t>(node.stage) < parts.size();
    if (!counts || plan::isTransfer(node)) continue;
    const auto stage = static_cast<size_t>(node.stage);
    std::string name = nameOf(graph, node);
    if (!name.empty() && seen[stage].insert(name).second) parts[stage].push_back(std::move(name));
  }
  std::vector<std::string> names;
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    const std::vector<std::string>& own = parts[stage];
    std::string& name = names.emplace_back();
    if (own.empty())
      name = graph.stages[stage].name.empty() ? cat("stage", stage) : graph.stages[stage].name;
    else if (own.size() > kMost)
      name = cat(own.front(), " to ", own.back());
    else
      name = joined(own);
  }
  return names;
}

/// Checks that the executable fits the recorded program in all that the host relies on. The key implies it.
void checkFits(const CompiledProgram& found, const MadeProgram& compiled, const ir::Graph& recorded) {
  const auto require = [](bool holds, std::string what) {
    ABELE_REQUIRE(holds, E0501, {.what = std::move(what), .remedy = "delete the file"});
  };
  require(found.input_types == compiled.input_types, "a program with other inputs");
  const exe::Executable& executable = found.executable;
  const size_t results = compiled.results.size() + compiled.written.size() + found.anchors.size();
  require(executable.training == recorded.training && results >= static_cast<size_t>(executable.numOutputs()),
          "a program with other results");
  require(executable.externals.size() >= recorded.externals.size(), "a program with fewer tensors");
  for (size_t i = 0; i < recorded.externals.size(); ++i)
    require(executable.externals[i].name == recorded.externals[i].name &&
                static_cast<int>(executable.externals[i].kind) == static_cast<int>(recorded.externals[i].kind) - 1,
            cat("a program without ", recorded.externals[i].name));
}

}  // namespace

void describeStages(MadeProgram& compiled) {
  const plan::Plan& plan = compiled.plan;
  const std::vector<std::string> names = stageNames(compiled.graph);
  const auto workers = static_cast<int32_t>(static_cast<int64_t>(compiled.executable.workers.size()) /
                                            compiled.executable.replicas);  // compares links too
  for (int32_t replica = 0; replica < compiled.executable.replicas; ++replica)
    for (size_t stage = 0; stage < plan.worker_of.size(); ++stage) {
      const int32_t worker = replica * workers + plan.worker_of[stage];
      compiled.stages.push_back({.name = stage < names.size() ? names[stage] : cat("stage", stage),
                                 .device = compiled.executable.workers[worker].device,
                                 .worker = worker,
                                 .replica = replica});
    }
}

CompiledProgram executableOnly(const MadeProgram& compiled) {
  CompiledProgram program;
  static_cast<LoweredProgram&>(program) = compiled;
  return program;
}

void takeExecutable(CompiledProgram found, MadeProgram& compiled, const ir::Graph& recorded) {
  checkFits(found, compiled, recorded);
  static_cast<LoweredProgram&>(compiled) = std::move(found);
}

}  // namespace abele::compile
