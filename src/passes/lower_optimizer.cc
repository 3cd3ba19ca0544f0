// Before:  output gradient(0) %g
// After:   abele.accumulate(%grad, %g) after the node that makes %g; abele.adam_(%w, %grad', ...) with direction update
//          at the end; externals for the accumulator and the states; outputs update(...)
// Before:  output gradient(0) %g, output gradient(0) %h
// After:   abele.accumulate(%grad, %g); abele.add(%grad', %h) after both, on the earlier stage of the two
// Order:   after assign-stages, because an accumulate node and its update run on the stage of the gradient.
// Cost:    O(nodes + parameters).   Undone by: nothing.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/cat.h"
#include "base/error.h"
#include "base/instructions.h"
#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::InputKind;
using ir::kNone;
using ir::Node;
using ir::ValueId;
using Rules = OptimizerRules;

class OptimizerLowering {
 public:
  OptimizerLowering(ir::Graph& graph, const Rules& rules) : graph_(graph), rules_(rules) {}

  Changed run() {
    std::vector<ir::Output> gradients;
    for (const ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kGradient) gradients.push_back(output);
    if (gradients.empty()) return Changed::kNo;
    std::erase_if(graph_.outputs, [](const ir::Output& o) { return o.kind == ir::OutputKind::kGradient; });
    std::stable_sort(gradients.begin(), gradients.end(),
                     [](const auto& a, const auto& b) { return a.target < b.target; });
    position_ = ir::positionsById(graph_);
    after_.resize(graph_.nodes.size());
    indexParameters();
    for (const ir::Output& gradient : gradients) findStage(gradient);
    for (const ir::Output& gradient : gradients) accumulate(gradient);
    ir::insertNodes(graph_, first_, after_);
    for (const Sum& sum : sums_) addUpdate(sum);
    return Changed::kYes;
  }

 private:
  // The sum of a parameter's gradients over micro-batches.
  struct Sum {
    int32_t parameter = kNone;
    int32_t stage = kNone;
    ValueId value = kNone;
    std::string source;
    size_t output = 0;         // its index among the graph's outputs
    int32_t position = kNone;  // the last node to write the sum follows the one here
  };

  struct NewExternal {
    int32_t external = kNone;
    ValueId value = kNone;  // the input that reads it
  };

  void indexParameters() {
    for (const ir::Input& input : graph_.inputs)
      if (input.kind == InputKind::kParameter) input_of_.emplace(input.external, input.value);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (graph_.outputs[i].kind == ir::OutputKind::kUpdate) output_of_.emplace(graph_.outputs[i].target, i);
    std::map<ValueId, int32_t> parameter_of;
    for (const auto& [parameter, value] : input_of_) parameter_of.emplace(value, parameter);
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      ir::forEachOperand(graph_.nodes[i], [&](ValueId v) {
        if (auto it = parameter_of.find(graph_.baseOf(v)); it != parameter_of.end())
          first_reader_.emplace(it->second, static_cast<int32_t>(i));
      });
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (graph_.nodes[i].direction != ir::Direction::kUpdate) last_position_ = static_cast<int32_t>(i);
  }

  // Adds an external of this type that belongs to the parameter.
  NewExternal addExternal(InputKind kind, const char* prefix, int32_t parameter, Type type) {
    ir::External external{
        .name = cat(prefix, "/", graph_.externals[parameter].name), .kind = kind, .type = type, .owner = parameter};
    int32_t index = static_cast<int32_t>(graph_.externals.size());
    graph_.externals.push_back(external);
    return {index, graph_.addInput(std::move(type), kind, index, std::move(external.name))};
  }
  // The parameter's type without gaps, with another element type if the optimizer asks for one. A real type is not used
  // for a complex parameter, because it cannot hold the gradient.
  Type typeLike(int32_t parameter, DType dtype) const {
    Type type = graph_.externals[parameter].type;
    if (type.extent() != type.numel()) type = contiguousType(type.dtype, type.sizes);
    if (dtype != DType::kUndefined && !isComplex(type.dtype)) type.dtype = dtype;
    return type;
  }

  // Adds an argument that the node overwrites as a whole.
  ValueId addWrittenArg(Node& node, ValueId before) {
    const Type& type = graph_.values[before].type;
    ir::Write write{.arg = static_cast<int32_t>(node.args.size()), .view = type, .before = before};
    write.after = graph_.addValue(type, node.id);
    node.args.push_back(Arg::id(before));
    node.writes.push_back(write);
    return write.after;
  }

  // The node that made the gradient; else the first that reads the parameter, or none.
  const Node* makerOf(const ir::Output& gradient) const {
    const int32_t maker = positionOf(graph_.values[graph_.baseOf(gradient.value)].def);
    return maker == kNone ? firstReader(gradient.target) : &graph_.nodes[maker];
  }

  // One stage adds up all gradients of a parameter: the one that makes the last of them.
  void findStage(const ir::Output& gradient) {
    const Node* made_by = makerOf(gradient);
    const int32_t stage = made_by == nullptr ? 0 : made_by->stage;
    const auto [entry, is_new] = stage_of_.emplace(gradient.target, stage);
    if (!is_new) entry->second = std::min(entry->second, stage);
  }

  // A device updates in one task what it has summed up in all its parts of a stage of the pipeline.
  int32_t stageOfUpdate(int32_t stage) const {
    const ir::Stage& own = graph_.stages[stage];
    if (own.pipeline == kNone) return stage;
    const auto first = std::find_if(graph_.stages.begin(), graph_.stages.end(), [&](const ir::Stage& other) {
      return other.pipeline == own.pipeline && other.device == own.device;
    });
    return static_cast<int32_t>(first - graph_.stages.begin());
  }

  void accumulate(const ir::Output& gradient) {
    const int32_t parameter = gradient.target;
    const bool continues = !sums_.empty() && sums_.back().parameter == parameter;
    if (!continues) addSum(parameter);
    Sum& sum = sums_.back();
    Node node;
    node.id = graph_.takeNodeId();
    node.op = ownOpName(continues ? OwnOp::kAdd : OwnOp::kAccumulate);
    node.direction = ir::Direction::kBackward;
    sum.value = graph_.outputs[sum.output].value = addWrittenArg(node, sum.value);
    node.args.push_back(Arg::id(gradient.value));

    const Node* made_by = makerOf(gradient);
    node.stage = sum.stage;
    node.source = made_by == nullptr ? std::string() : made_by->source;
    node.forward = made_by == nullptr ? kNone : made_by->forward;
    sum.source = node.source;
    // Accumulates as soon as the gradient exists, so that its memory is free again soon.
    const int32_t position = positionOf(graph_.values[gradient.value].def);
    sum.position = std::max(sum.position, position == kNone ? last_position_ : position);
    if (sum.position == kNone)
      first_.push_back(std::move(node));
    else
      after_[sum.position].push_back(std::move(node));
  }

  void addSum(int32_t parameter) {
    const NewExternal sum =
        addExternal(InputKind::kAccumulator, "grad", parameter, typeLike(parameter, rules_.accumulator));
    sums_.push_back({.parameter = parameter,
                     .stage = stage_of_.at(parameter),
                     .value = sum.value,
                     .output = graph_.outputs.size()});
    graph_.outputs.push_back({sum.value, ir::OutputKind::kUpdate, sum.external});
  }

  int32_t positionOf(ir::NodeId id) const { return id == kNone ? kNone : position_[id]; }

  const Node* firstReader(int32_t parameter) const {
    auto it = first_reader_.find(parameter);
    return it == first_reader_.end() ? nullptr : &graph_.nodes[it->second];
  }

  // The output with the latest contents of the parameter, which forward may have written; the update replaces it.
  ir::Output& parameterOutput(int32_t parameter) {
    auto [it, is_new] = output_of_.emplace(parameter, graph_.outputs.size());
    if (!is_new) return graph_.outputs[it->second];
    const auto input = input_of_.find(parameter);
    const ValueId value = input != input_of_.end()
                              ? input->second
                              : graph_.addInput(graph_.externals[parameter].type, InputKind::kParameter, parameter,
                                                graph_.externals[parameter].name);
    return graph_.outputs.emplace_back(ir::Output{value, ir::OutputKind::kUpdate, parameter});
  }

  void addState(Node& node, const char* prefix, int32_t parameter, Type type, double initial) {
    const NewExternal state = addExternal(InputKind::kState, prefix, parameter, std::move(type));
    graph_.externals[state.external].initial = initial;
    ValueId after = addWrittenArg(node, state.value);
    graph_.outputs.push_back({after, ir::OutputKind::kUpdate, state.external});
  }

  void addUpdate(const Sum& sum) {
    auto found = rules_.group_of.find(graph_.externals[sum.parameter].name);
    if (rules_.kind == Rules::Kind::kNone || found == rules_.group_of.end()) return;
    ABELE_CHECK(found->second >= 0 && static_cast<size_t>(found->second) < rules_.groups.size(), "parameter group ",
                found->second, " of ", found->first, " does not exist");
    const Rules::Group& group = rules_.groups[found->second];
    ABELE_REQUIRE(!group.amsgrad, E0706,
                  {.what = "amsgrad is not supported on the device",
                   .at = cat("parameter group ", found->second, ", with ", found->first),
                   .remedy = "create the optimizer with amsgrad=False"});
    const OptimizerRow& row = optimizerRow(rules_.kind);
    const bool is_real_only = (row.traits & kRealOnly) != 0;
    ABELE_REQUIRE(!is_real_only || !isComplex(graph_.externals[sum.parameter].type.dtype), E0706,
                  {.what = cat(row.name, " is not defined for complex parameters"),
                   .at = cat("parameter group ", found->second, ", with ", found->first),
                   .remedy = "put the parameter into another optimizer's model, or store it as torch.view_as_real"});
    const int32_t stage = stageOfUpdate(sum.stage);
    const ValueId factor = clipFactor(stage);
    Node& node = graph_.addNode(row.op);
    node.direction = ir::Direction::kUpdate;
    node.stage = stage;
    node.source = sum.source;
    ir::Output& output = parameterOutput(sum.parameter);
    output.value = addWrittenArg(node, output.value);
    node.args.push_back(Arg::id(sum.value));
    addStates(node, row, sum.parameter, group, /*behind_factor=*/false);
    node.args.push_back(Arg::integer(found->second));
    if (row.flag.name) node.args.push_back(Arg::boolean(group.*row.flag.property));
    const bool keeps_more = std::ranges::any_of(
        row.states, [&](const OptimizerState& state) { return state.is_behind_factor && state.isKept(group); });
    if (factor != kNone || keeps_more) node.args.push_back(factor == kNone ? Arg::none() : Arg::id(factor));
    if (keeps_more) addStates(node, row, sum.parameter, group, /*behind_factor=*/true);
  }

  // Adds the update's states as arguments.
  void addStates(Node& node, const OptimizerRow& row, int32_t parameter, const Rules::Group& group,
                 bool behind_factor) {
    for (const OptimizerState& state : row.states) {
      if (state.is_behind_factor != behind_factor) continue;
      if (state.isKept(group))
        addState(node, state.name, parameter, typeOf(state, parameter),
                 /*initial=*/state.starts_at_one && group.*state.starts_at_one ? 1 : 0);
      else
        node.args.push_back(Arg::none());
    }
  }

  Type typeOf(const OptimizerState& state, int32_t parameter) const {
    switch (state.type) {
      case OptimizerState::Type::kFirstMoment: return typeLike(parameter, rules_.first_moment);
      case OptimizerState::Type::kSecondMoment: return typeLike(parameter, rules_.second_moment);
      case OptimizerState::Type::kStep: break;
    }
    return contiguousType(DType::kFloat32, {});
  }

  // The factor that scales all gradients so that their norm is at most max_grad_norm; kNone without clipping. Each
  // stage computes it for itself. All sums are complete when updates run, so updates need not wait for each other.
  ValueId clipFactor(int32_t stage) {
    const bool clips = !std::isinf(rules_.max_grad_norm);
    if (!clips && !rules_.skips_overflow) return kNone;
    auto [factor, is_new] = factor_of_stage_.emplace(stage, kNone);
    if (!is_new) return factor->second;
    std::vector<int64_t> all;
    for (const Sum& other : sums_)
      if (rules_.group_of.count(graph_.externals[other.parameter].name) > 0) all.push_back(other.value);
    const ir::NodeId id = graph_.addNode(ownOpName(OwnOp::kClipFactor)).id;
    const ValueId value = graph_.addValue(contiguousType(DType::kFloat32, {}), id);
    Node& node = graph_.nodes.back();
    node.direction = ir::Direction::kUpdate;
    node.stage = stage;
    node.args = {Arg::idList(std::move(all)), Arg::real(clips ? rules_.max_grad_norm : 0)};
    if (rules_.skips_overflow) node.args.push_back(Arg::boolean(true));
    node.results = {{value}};
    return factor->second = value;
  }

  ir::Graph& graph_;
  const Rules& rules_;
  std::vector<int32_t> position_;            // position of each node, by id
  std::map<int32_t, ValueId> input_of_;      // by parameter
  std::map<int32_t, size_t> output_of_;      // by external: position of its update among the outputs
  std::map<int32_t, int32_t> first_reader_;  // by parameter: position of the first node that reads it
  std::map<int32_t, int32_t> stage_of_;      // by parameter: where its gradients are added up
  int32_t last_position_ = kNone;            // the end of the micro-batch: the last node before the updates
  std::vector<Node> first_;                  // accumulate nodes of a graph without other nodes
  std::vector<std::vector<Node>> after_;     // accumulate nodes, by the position that they follow
  std::vector<Sum> sums_;
  std::map<int32_t, ValueId> factor_of_stage_;
};

}  // namespace

Changed lowerOptimizer(ir::Graph& graph, PassContext& context) {
  return OptimizerLowering(graph, context.optimizer).run();
}

}  // namespace abele::passes
