#include "compile/tensor_names.h"

#include <unordered_map>

#include "base/error.h"

namespace abele::compile {
namespace {

/// "aten::log_softmax.int" -> "log_softmax".
std::string plainName(const std::string& op) {
  const size_t begin = op.rfind(':') == std::string::npos ? 0 : op.rfind(':') + 1;
  return op.substr(begin, op.find('.', begin) - begin);
}

std::string operationName(const std::string& op) {
  static const std::unordered_map<std::string, std::string> known = {
#define ABELE_OPERATION_NAME(aten, name) {aten, name},
#include "compile/operation_names.def"
#undef ABELE_OPERATION_NAME
  };
  const std::string plain = plainName(op);
  if (auto found = known.find(plain); found != known.end()) return found->second;
  std::string camel;
  bool upper = true;
  for (char c : plain) {
    if (c == '_') {
      upper = true;
      continue;
    }
    camel += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    upper = false;
  }
  return camel.empty() ? plain : camel;
}

constexpr const char* kGradient = "Gradient___";
constexpr const char* kUpdated = "UpdatedVar___";

}  // namespace

TensorNames::TensorNames(const capture::Recording& recording, const OptimizerSpec& optimizer) {
  const ir::Graph& graph = recording.graph;
  int inputs = 0;
  for (const ir::Input& in : graph.inputs)
    if (in.kind == ir::InputKind::kArgument) add(inputs++ == 0 ? "input" : cat("input/", inputs - 1), in.value);
  for (const ir::Input& in : graph.inputs)
    if (in.kind == ir::InputKind::kParameter || in.kind == ir::InputKind::kBuffer)
      add(graph.externals.at(in.external).name, in.value);
  addOperations(graph);
  if (graph.training) addTraining(graph, optimizer);
}

void TensorNames::add(const std::string& name, ir::ValueId value) {
  if (values_.emplace(name, value).second) all_.push_back(name);
}

void TensorNames::addOperations(const ir::Graph& graph) {
  std::map<std::string, int> repetitions;
  for (const ir::Node& node : graph.nodes) {
    if (node.direction != ir::Direction::kForward) continue;
    const std::string name = cat(node.scope, node.scope.empty() ? "" : "/", operationName(node.op));
    std::vector<ir::ValueId> made;
    forEachResult(node, [&](ir::ValueId value) { made.push_back(value); });
    if (made.empty()) continue;
    const int repetition = repetitions[name]++;
    for (size_t i = 0; i < made.size(); ++i)
      add(repetition == 0 ? cat(name, ":", i) : cat(name, ":", i, "/", repetition), made[i]);
  }
}

void TensorNames::addTraining(const ir::Graph& graph, const OptimizerSpec& optimizer) {
  std::unordered_map<int32_t, int> num_parts;  // by parameter
  for (const ir::Output& out : graph.outputs) {
    if (out.kind == ir::OutputKind::kLoss) add("loss", out.value);
    if (out.kind == ir::OutputKind::kGradient) ++num_parts[out.target];
  }
  for (const ir::Output& out : graph.outputs) {
    if (out.kind != ir::OutputKind::kGradient) continue;
    const std::string& parameter = graph.externals.at(out.target).name;
    if (num_parts[out.target] == 1) add(kGradient + parameter, out.value);  // no value is the sum of several
    const bool is_updated = optimizer.rules.group_of.contains(parameter);
    if (!is_updated || !updated_.emplace(kUpdated + parameter, out.target).second) continue;
    all_.push_back(kUpdated + parameter);
    using Kind = passes::OptimizerRules::Kind;
    std::vector<std::string> values = {"learningRate", "weightDecay"};
    if (optimizer.rules.kind == Kind::kSgd)
      values = {"scaledLearningRate0", "weightDecayScaleFactor0", "dampeningScaleFactor0"};
    for (const std::string& value : values) all_.push_back(cat(value, "___specific___", parameter));
  }
  all_.push_back("lossScaling_FLOAT");
}

std::vector<CompiledAnchor> TensorNames::addAnchors(const ProgramOptions& options, int32_t next_target,
                                                    ir::Graph& graph) const {
  std::vector<CompiledAnchor> anchors;
  for (const Anchor& wanted : options.anchors) {
    if (options.training && wanted.long_name == kFinalLossScale) continue;  // not in the graph; see session.cc
    CompiledAnchor anchor{
        .name = wanted.short_name, .target = next_target++, .mode = wanted.mode, .period = wanted.period};
    if (auto updated = updated_.find(wanted.long_name); updated != updated_.end()) {
      anchor.updated = updated->second;
      anchor.type = graph.externals.at(updated->second).type;
    } else {
      auto found = values_.find(wanted.long_name);
      ABELE_REQUIRE(found != values_.end(), E0708,
                    {.what = cat("anchor ", wanted.short_name, " names no tensor of the program"),
                     .found = wanted.long_name,
                     .expected = "a name of getTensorNames() that is not a number of the optimizer",
                     .remedy = "compile without the anchor and look at getTensorNames()"});
      anchor.type = graph.values.at(found->second).type;
      graph.outputs.push_back({found->second, ir::OutputKind::kResult, anchor.target});
    }
    anchors.push_back(std::move(anchor));
  }
  return anchors;
}

void TensorNames::addUpdated(std::vector<CompiledAnchor>& anchors, ir::Graph& lowered) {
  std::unordered_map<int32_t, ir::ValueId> updated;
  for (const ir::Output& out : lowered.outputs)
    if (out.kind == ir::OutputKind::kUpdate) updated[out.target] = out.value;
  for (const CompiledAnchor& anchor : anchors) {
    if (anchor.updated < 0) continue;
    const auto found = updated.find(anchor.updated);
    ABELE_CHECK(found != updated.end(), "parameter ", anchor.updated, " of an optimizer group is not updated");
    lowered.outputs.push_back({found->second, ir::OutputKind::kResult, anchor.target});
  }
}

}  // namespace abele::compile
