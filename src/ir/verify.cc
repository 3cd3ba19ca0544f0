#include "ir/verify.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/cat.h"
#include "base/error.h"
#include "base/instructions.h"
#include "base/own_generator.h"
#include "ir/text_impl.h"

namespace abele::ir {
namespace {

constexpr size_t kShownFindings = 20;

// The state that all rules share: the graph, the findings, and where each value is defined.
class Check {
 public:
  explicit Check(const Graph& graph) : graph(graph), position(graph.values.size(), kUndefined) {
    for (const Input& input : graph.inputs)
      if (exists(input.value)) position[input.value] = kInputPosition;
    for (size_t i = 0; i < graph.nodes.size(); ++i)
      forEachResult(graph.nodes[i], [&](ValueId v) {
        if (exists(v)) position[v] = static_cast<int32_t>(i);
      });
  }

  template <class... Parts>
  void found(const Parts&... parts) {
    findings.push_back(cat(parts...));
  }

  bool exists(ValueId v) const { return v >= 0 && static_cast<size_t>(v) < graph.values.size(); }
  bool isDefined(ValueId v) const { return exists(v) && position[v] != kUndefined; }
  /// The node that makes the memory of v, or nullptr for an input.
  const Node* maker(ValueId v) const {
    ValueId base = graph.baseOf(v);
    return isDefined(base) && position[base] >= 0 ? &graph.nodes[position[base]] : nullptr;
  }

  static constexpr int32_t kInputPosition = -1;
  static constexpr int32_t kUndefined = -2;
  const Graph& graph;
  std::vector<int32_t> position;  // index of the defining node in graph.nodes
  std::vector<std::string> findings;
};

std::string nodeText(const Node& node) {
  return cat("node ", node.id, " ", node.op, node.source.empty() ? "" : " (", node.source,
             node.source.empty() ? "" : ")");
}

// Whether a region starts and ends inside a tensor of type base.
bool liesInside(const Type& region, int64_t offset, const Type& base) {
  if (!region.defined()) return !base.defined();
  if (region.numel() == 0) return true;
  int64_t bytes = elementBytes(region.dtype);
  return offset >= 0 && offset * bytes + region.extentBytes() <= base.extentBytes();
}

void checkValues(Check& c) {
  for (size_t i = 0; i < c.graph.values.size(); ++i) {
    const Value& value = c.graph.values[i];
    if (value.type.sizes.size() != value.type.strides.size())
      c.found("%", i, " has ", value.type.sizes.size(), " sizes but ", value.type.strides.size(), " strides");
    else if (!c.exists(value.base))
      c.found("%", i, " is a view of %", value.base, ", which does not exist");
    else if (value.base == static_cast<ValueId>(i)) {
      if (value.offset != 0) c.found("%", i, " is not a view but has offset ", value.offset);
    } else if (const Value& base = c.graph.values[value.base]; base.base != value.base)
      c.found("%", i, " is a view of %", value.base, ", which is a view itself");
    else if (!liesInside(value.type, value.offset, base.type))
      c.found("%", i, " of type ", value.type.str(), " at ", value.offset, " is not inside its base %", value.base,
              " of type ", base.type.str());
  }
}

void checkDefinitions(Check& c) {
  std::vector<bool> seen(c.graph.values.size(), false);
  auto define = [&](ValueId v, const Node* maker) {
    const auto where = [&] { return maker ? nodeText(*maker) : "an input"; };
    if (!c.exists(v)) return c.found(where(), " defines %", v, ", which does not exist");
    if (seen[v]) c.found(where(), " defines %", v, " a second time");
    seen[v] = true;
    if (const NodeId def = c.graph.values[v].def; def != (maker ? maker->id : kNone))
      c.found("%", v, " is made by ", where(), " but names node ", def);
  };
  for (const Input& input : c.graph.inputs) define(input.value, nullptr);
  std::unordered_set<NodeId> ids(c.graph.nodes.size());
  for (const Node& node : c.graph.nodes) {
    if (node.id < 0 || !ids.insert(node.id).second) c.found(nodeText(node), " has an id that is negative or taken");
    forEachResult(node, [&](ValueId v) { define(v, &node); });
  }
  // A removed value leaves an undefined base.
  for (size_t v = 0; v < seen.size(); ++v)
    if (!seen[v] && c.graph.values[v] != Value{.base = static_cast<ValueId>(v)})
      c.found("%", v, " is neither an input nor made by a node");
}

void checkInputs(Check& c) {
  for (const Input& input : c.graph.inputs) {
    if (!c.exists(input.value)) continue;
    const Value& value = c.graph.values[input.value];
    if (value.base != input.value) c.found("input %", input.value, " is a view");
    if (input.kind == InputKind::kArgument) {
      if (input.external < 0) c.found("input %", input.value, " does not say which argument it is");
      continue;
    }
    if (input.external < 0 || static_cast<size_t>(input.external) >= c.graph.externals.size()) {
      c.found("input %", input.value, " is external ", input.external, ", which does not exist");
      continue;
    }
    const External& external = c.graph.externals[input.external];
    if (external.kind != input.kind)
      c.found("input %", input.value, " is a ", inputKindName(input.kind), " but external ", input.external, " is a ",
              inputKindName(external.kind));
    const bool fits = input.dim == kNone ? input.begin == 0 && value.type == external.type
                                         : isRangeOf(value.type, external.type, input.dim, input.begin);
    if (!fits)
      c.found("input %", input.value, " of type ", value.type.str(), " is external ", external.name, " of type ",
              external.type.str());
  }
}

void checkOperands(Check& c) {
  for (size_t i = 0; i < c.graph.nodes.size(); ++i) {
    const Node& node = c.graph.nodes[i];
    if (node.op.empty()) c.found("node ", node.id, " has no operator");
    forEachOperand(node, [&](ValueId v) {
      if (!c.isDefined(v))
        c.found(nodeText(node), " reads %", v, ", which is defined nowhere");
      else if (c.position[v] >= static_cast<int32_t>(i))
        c.found(nodeText(node), " reads %", v, " before it is made");
    });
  }
}

void checkResults(Check& c) {
  for (const Node& node : c.graph.nodes) {
    if (node.is_view && !node.writes.empty()) c.found(nodeText(node), " is a view node that writes");
    if (!node.is_view) continue;
    forEachResult(node, [&](ValueId v) {
      if (!c.exists(v)) return;
      const ValueId base = c.graph.baseOf(v);
      bool is_of_operand = false;
      forEachOperand(node, [&](ValueId o) { is_of_operand |= c.exists(o) && c.graph.baseOf(o) == base; });
      if (base == v || !is_of_operand) c.found(nodeText(node), " makes %", v, ", which is not a view of an operand");
    });
  }
}

void checkWrite(Check& c, const Node& node, const Write& w) {
  if (!c.exists(w.before) || !c.exists(w.after)) return c.found(nodeText(node), " writes values that do not exist");
  const Arg* arg = w.arg >= 0 && static_cast<size_t>(w.arg) < node.args.size() ? &node.args[w.arg] : nullptr;
  int64_t operand = kNone;
  if (arg != nullptr && w.element == kNone && arg->kind == Arg::Kind::kId) operand = arg->i;
  if (arg != nullptr && w.element >= 0 && arg->holdsIds() && static_cast<size_t>(w.element) < arg->ints.size())
    operand = arg->ints[w.element];
  if (operand != w.before)
    c.found(nodeText(node), " writes %", w.before, " but argument ", w.arg, " is not %", w.before);
  const Value& before = c.graph.values[w.before];
  const Value& after = c.graph.values[w.after];
  if (before.base != w.before) c.found(nodeText(node), " writes %", w.before, ", which is a view");
  if (after.base != w.after) c.found(nodeText(node), " makes %", w.after, ", which is a view");
  if (before.type != after.type)
    c.found(nodeText(node), " writes %", w.before, " of type ", before.type.str(), " into %", w.after, " of type ",
            after.type.str());
  if (!liesInside(w.view, w.offset, before.type))
    c.found(nodeText(node), " writes ", w.view.str(), " at ", w.offset, ", outside %", w.before, " of type ",
            before.type.str());
}

void checkWrites(Check& c) {
  for (const Node& node : c.graph.nodes)
    for (const Write& w : node.writes) checkWrite(c, node, w);
}

void checkOutputs(Check& c) {
  std::set<std::pair<OutputKind, int32_t>> targets;
  for (const Output& output : c.graph.outputs) {
    std::string where = cat("output ", outputKindName(output.kind), "(", output.target, ")");
    if (!c.isDefined(output.value)) {
      c.found(where, " is %", output.value, ", which is defined nowhere");
      continue;
    }
    // Gradients of one parameter are added to its sum one after the other.
    if (!targets.emplace(output.kind, output.target).second && output.kind != OutputKind::kGradient)
      c.found(where, " exists twice");
    if (output.kind == OutputKind::kLoss && !c.graph.training) c.found(where, " in a graph for inference");
    if (output.kind != OutputKind::kGradient && output.kind != OutputKind::kUpdate) continue;
    if (output.target < 0 || static_cast<size_t>(output.target) >= c.graph.externals.size()) {
      c.found(where, " names an external that does not exist");
      continue;
    }
    const External& external = c.graph.externals[output.target];
    if (output.kind == OutputKind::kGradient && external.kind != InputKind::kParameter)
      c.found(where, " is of ", external.name, ", a ", inputKindName(external.kind));
    if (output.kind == OutputKind::kUpdate && c.graph.values[output.value].type != external.type)
      c.found(where, " has type ", c.graph.values[output.value].type.str(), " but ", external.name, " has ",
              external.type.str());
  }
}

void checkDirections(Check& c) {
  for (const Node& node : c.graph.nodes) {
    if (!c.graph.training && node.direction != Direction::kForward)
      c.found(nodeText(node), " has direction ", directionName(node.direction), " in a graph for inference");
    forEachOperand(node, [&](ValueId v) {
      if (!c.exists(v)) return;
      const Node* maker = c.maker(v);
      if (maker == nullptr) return;
      if (node.direction == Direction::kForward && maker->direction != Direction::kForward)
        c.found(nodeText(node), " is a forward node but reads %", v, " of ", nodeText(*maker));
      if (node.direction != Direction::kUpdate && maker->direction == Direction::kUpdate)
        c.found(nodeText(node), " runs every micro-batch but reads %", v, " of ", nodeText(*maker));
    });
  }
}

void checkRandom(Check& c) {
  for (const Node& node : c.graph.nodes) {
    const Normals& own = node.normals;
    if (ownGenerator(node.args) > 0) {
      if (node.random_draws < 0 || node.random_offset < 0 || own.count < 0 || own.before < 0)
        c.found(nodeText(node), " draws from a generator of the user's program, but has no place in its stream");
      continue;
    }
    // A program may put the stream back. Then a node may draw after the place where the next micro-batch begins.
    if (node.random_draws >= 0 && node.random_offset < 0)
      c.found(nodeText(node), " draws ", node.random_draws, " numbers at ", node.random_offset);
    if (own.count < 0 || own.before < 0)
      c.found(nodeText(node), " draws ", own.count, " normal numbers after ", own.before);
    if (own.count > 0 && (own.spare > std::max<int64_t>(node.random_offset, 0) || own.spare < -c.graph.random_draws))
      c.found(nodeText(node), " draws normal numbers at ", node.random_offset, " and finds the spare of draw ",
              own.spare);
  }
}

void checkIndices(Check& c) {
  for (const Node& node : c.graph.nodes) {
    if (node.block < kNone || node.block >= static_cast<int32_t>(c.graph.blocks.size()))
      c.found(nodeText(node), " is in block ", node.block, ", which does not exist");
    if (node.stage < kNone || node.stage >= static_cast<int32_t>(c.graph.stages.size()))
      c.found(nodeText(node), " is in stage ", node.stage, ", which does not exist");
  }
}

void checkNormalViews(Check& c) {
  for (size_t i = 0; i < c.graph.values.size(); ++i) {
    const Value& value = c.graph.values[i];
    if (value.base == static_cast<ValueId>(i) || !c.exists(value.base) || value.offset != 0) continue;
    if (value.type == c.graph.values[value.base].type) c.found("%", i, " is the same as its base %", value.base);
  }
}

void checkStages(Check& c) {
  for (const Node& node : c.graph.nodes)
    if (node.stage == kNone) c.found(nodeText(node), " has no stage");
}

void checkBackwardOrder(Check& c) {
  auto isGradient = [](const Node& node) {
    return !node.is_view && (node.direction == Direction::kBackward || node.direction == Direction::kWeightGrad);
  };
  for (const Node& node : c.graph.nodes) {
    if (!isGradient(node)) continue;
    forEachOperand(node, [&](ValueId v) {
      const Node* maker = c.exists(v) ? c.maker(v) : nullptr;
      if (maker != nullptr && isGradient(*maker) && maker->stage < node.stage)
        c.found(nodeText(node), " in stage ", node.stage, " reads %", v, " made in stage ", maker->stage,
                ", whose backward runs later");
      // Weight gradients run some time after the backward of their stage, so the gradients of other tasks may not read
      // them.
      const bool is_late = maker != nullptr && !maker->is_view && maker->direction == Direction::kWeightGrad &&
                           (node.direction != Direction::kWeightGrad || maker->stage != node.stage);
      if (is_late) c.found(nodeText(node), " reads %", v, " of the weight gradients of stage ", maker->stage);
    });
  }
}

void checkLowered(Check& c) {
  for (const Output& output : c.graph.outputs)
    if (output.kind == OutputKind::kGradient)
      c.found("the gradient of external ", output.target, " is still an output");
  for (const External& external : c.graph.externals) {
    if (external.kind != InputKind::kAccumulator && external.kind != InputKind::kState) continue;
    bool owned = external.owner >= 0 && static_cast<size_t>(external.owner) < c.graph.externals.size() &&
                 c.graph.externals[external.owner].kind == InputKind::kParameter;
    if (!owned) c.found(inputKindName(external.kind), " ", external.name, " belongs to no parameter");
  }
  std::set<ValueId> accumulators;
  for (const Input& input : c.graph.inputs)
    if (input.kind == InputKind::kAccumulator) accumulators.insert(input.value);
  for (const Node& node : c.graph.nodes) {
    if (!hasTrait(node.op, kSums)) continue;
    bool writes_one = node.writes.size() == 1 && accumulators.count(node.writes[0].before) > 0;
    if (!writes_one) c.found(nodeText(node), " does not write exactly one accumulator");
    if (node.direction != Direction::kBackward && node.direction != Direction::kWeightGrad)
      c.found(nodeText(node), " is not part of backward");
  }
}

struct Rule {
  void (*check)(Check&);
  Form first;
  const char* summary;
};
constexpr Rule kRules[] = {
#define ABELE_RULE(function, form, summary) {function, Form::form, summary},
#include "ir/forms.def"
#undef ABELE_RULE
};

}  // namespace

std::string_view formName(Form form) {
  constexpr std::string_view kNames[] = {"captured", "normal", "staged", "lowered"};
  return kNames[static_cast<size_t>(form)];
}

std::vector<std::string> verify(const Graph& graph, Form form) {
  Check check(graph);
  for (const Rule& rule : kRules) {
    if (rule.first <= form) rule.check(check);
    // The other rules follow bases without checking them.
    if (rule.check == checkValues && !check.findings.empty()) break;
  }
  return std::move(check.findings);
}

void requireValid(const Graph& graph, Form form, bool from_user) {
  std::vector<std::string> findings = verify(graph, form);
  if (findings.empty()) return;
  std::string list;
  for (size_t i = 0; i < std::min(findings.size(), kShownFindings); ++i) list += cat(i == 0 ? "" : "\n", findings[i]);
  if (findings.size() > kShownFindings) list += cat("\nand ", findings.size() - kShownFindings, " more");
  std::string what = cat("graph @", graph.name, " is not of form ", formName(form), ": ", findings.size(),
                         findings.size() == 1 ? " mistake" : " mistakes");
  if (!from_user) throwInternal(__FILE__, __LINE__, "verify(graph, form).empty()", cat(what, "\n", list));
  throwUser(ErrorCode::E0203, {.what = what, .found = std::move(list), .expected = "the rules of src/ir/forms.def"});
}

}  // namespace abele::ir
