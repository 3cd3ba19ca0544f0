// Before:  %y = aten.mm(%x, %w) {stage=0}, %z = aten.sum(%y) {stage=0}, where stage 0 has a group of two devices
// After:   %y0 = aten.mm(%x, %w[:, :n]) {stage=0}, %y1 = aten.mm(%x, %w[:, n:]) {stage=1}
//          %g = aten.cat([%y0, %y1], 1) {stage=2}, %z = aten.sum(%g) {stage=2}
// Order:   after assign-stages, which puts nodes into the stages of the pipeline; before passes that add updates.
// Cost:    O(nodes * operands * parts), and a trial for each kind of cut.
// Undone by: nothing. A second run finds stages that are parts already.
//
// Each stage of the pipeline becomes a sequence of steps. A step is one stage for each device of the group. Devices
// work side by side in a step; a device reads only what other devices made in earlier steps. Backward runs the steps in
// reverse order, as it runs stages.
// An operator is divided by what it makes and never by what it sums up, and only if a trial on this machine gives the
// bits of the whole. Everything else is computed whole by one device of the group. Tensors of the program stay whole:
// parts read views of them. A value that was made in parts is gathered where it is read whole.
#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "base/error.h"
#include "ir/rewrite.h"
#include "passes/pass.h"
#include "passes/shard_cuts.h"
#include "passes/shard_trial_graphs.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::NodeId;
using ir::Value;
using ir::ValueId;

// Less work than this (in multiplications and additions) is not worth a wait for another device.
constexpr int64_t kLeastWork = int64_t{1} << 18;
// Fewer gradients of weights than this for each device of a stage are cut, because they would not share out evenly.
constexpr size_t kGradientsOfDevice = 2;

class Sharding {
 public:
  Sharding(ir::Graph& graph, const StageRules& rules,
           const std::function<bool(const ir::Graph&, const ir::Graph&)>& trial)
      : graph_(graph), rules_(rules), trial_(trial), views_(graph) {}

  Changed run() {
    for (const Node& node : graph_.nodes) graph_.node_id_limit = std::max(graph_.node_id_limit, node.id + 1);
    for (const ir::Output& output : graph_.outputs) is_output_.insert(graph_.baseOf(output.value));
    for (const ir::Input& input : graph_.inputs)
      if (input.kind == ir::InputKind::kParameter) is_parameter_.insert(input.value);
    whole_stages_ = stagesThatStayWhole(graph_);
    for (size_t s = 0; s < graph_.stages.size(); ++s) {
      const std::vector<int32_t>& group = graph_.stages[s].group;
      load_.emplace_back(numParts(static_cast<int32_t>(s)), 0);
      has_memories_.push_back(std::ranges::any_of(
          group, [&](int32_t device) { return rules_.spaceOf(device) != rules_.spaceOf(group[0]); }));
    }
    findGradientMakers();
    std::vector<Node> nodes = std::move(graph_.nodes);
    for (Node& node : nodes) {
      if (node.is_view && isCut(viewedBase(node))) {
        ir::forEachResult(node, [&](ValueId v) { dropped_views_.push_back(v); });
      } else if (node.is_view) {
        ir::forEachResult(node, [&](ValueId v) { views_.note(v); });
        emit(std::move(node), /*part=*/0);
      } else {
        addNode(std::move(node));
      }
    }
    for (ir::Output& output : graph_.outputs)
      if (isCut(graph_.baseOf(output.value))) output.value = result_of_.at(output.value);
    for (ValueId v : dropped_views_) ir::forgetValue(graph_, v);
    for (const auto& [base, parts] : cut_) ir::forgetValue(graph_, base);
    numberStages();
    graph_.nodes = std::move(out_);
    return Changed::kYes;
  }

 private:
  struct Spot {
    int32_t stage = kNone;  // the stage of the pipeline
    Direction direction = Direction::kForward;
    size_t part = 0;
    int32_t step = 0;
    bool isSameTaskAs(const Spot& other) const { return stage == other.stage && direction == other.direction; }
  };

  void findGradientMakers() {
    std::map<NodeId, int32_t> parameter_of;
    for (const ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kGradient)
        parameter_of.emplace(valueOf(graph_.baseOf(output.value)).def, output.target);
    for (const Node& node : graph_.nodes)
      if (const auto made = parameter_of.find(node.id);
          made != parameter_of.end() && workOf(graph_, node) >= kLeastWork)
        gradient_makers_[node.stage].insert(*made);
    for (const auto& [stage, makers] : gradient_makers_)
      if (has_memories_[index(stage)]) chooseHolders(stage, makers);
  }

  // The device that makes the gradients of a parameter also holds their sum, the state and the parameter as a whole. So
  // all memories get about the same number of bytes of parameters.
  void chooseHolders(int32_t stage, const std::map<NodeId, int32_t>& makers) {
    std::set<std::pair<int64_t, int32_t>> parameters;  // by bytes
    for (const auto& [node, parameter] : makers)
      parameters.emplace(graph_.externals[index(parameter)].type.extentBytes(), parameter);
    std::vector<int64_t> held(numParts(stage), 0);
    for (const auto& [bytes, parameter] : std::views::reverse(parameters)) {
      const auto least = std::ranges::min_element(held);
      *least += bytes;
      holder_of_[{stage, parameter}] = static_cast<size_t>(least - held.begin());
    }
  }

  size_t numParts(int32_t stage) const { return std::max<size_t>(1, graph_.stages[index(stage)].group.size()); }
  ValueId viewedBase(const Node& node) const { return graph_.baseOf(static_cast<ValueId>(node.args.at(0).i)); }
  bool isCut(ValueId base) const { return cut_.contains(base); }
  const Value& valueOf(ValueId v) const { return graph_.values[index(v)]; }

  // --- emitting nodes ------------------------------------------------------------------------------------------------
  //
  // The first step in which a device can run a node. Other devices make its operands in earlier steps.
  Spot spotOf(const Node& node, size_t part) const {
    Spot spot{node.stage, node.direction, part, 0};
    ir::forEachOperand(node, [&](ValueId v) {
      const auto maker = made_in_.find(graph_.baseOf(v));
      if (maker == made_in_.end() || !maker->second.isSameTaskAs(spot)) return;
      spot.step = std::max(spot.step, maker->second.step + (maker->second.part != part));
    });
    return spot;
  }

  Node& emit(Node node, const Spot& spot) {
    if (!node.is_view) {
      ir::forEachResult(node, [&](ValueId v) { made_in_[graph_.baseOf(v)] = spot; });
      load_[index(node.stage)][spot.part] += workOf(graph_, node);
    }
    spots_.push_back(spot);
    return out_.emplace_back(std::move(node));
  }
  Node& emit(Node node, size_t part) {
    const Spot spot = spotOf(node, part);
    return emit(std::move(node), spot);
  }

  ValueId viewOf(ValueId base, const Type& type, int64_t offset, const Node& reader) {
    return views_.of(base, type, offset, [&]() -> Node& {
      const auto maker = made_in_.find(base);
      const Spot spot = maker != made_in_.end() ? maker->second : Spot{reader.stage};
      Node node = ir::nodeBeside(graph_, "", reader);
      node.is_view = true;
      node.stage = spot.stage;
      node.direction = spot.direction;
      return emit(std::move(node), spot);
    });
  }

  // --- values --------------------------------------------------------------------------------------------------------
  //
  // The whole of a cut base, gathered by the device that reads it. Its elements have the places that they have in the
  // base, so views of the base are views of it.
  ValueId gathered(ValueId base, size_t part, const Node& reader) {
    using Key = std::tuple<ValueId, size_t, int32_t, Direction>;
    if (const auto early = gathered_.find(Key{base, part, reader.stage, Direction::kForward}); early != gathered_.end())
      return early->second;
    const auto [known, is_new] = gathered_.emplace(Key{base, part, reader.stage, reader.direction}, kNone);
    if (!is_new) return known->second;
    const Parts& parts = cut_.at(base);
    int dim = parts.dim;
    const Type type = inMemoryOrder(parts.type, dim);
    std::vector<int64_t> pieces;
    for (size_t i = 0; i < parts.values.size(); ++i)
      pieces.push_back(viewOf(parts.values[i], partType(type, dim, lengthOf(parts.ends, i)), 0, reader));
    Node node = ir::nodeBeside(graph_, "aten::cat", reader);
    node.args = {Arg::idList(std::move(pieces)), Arg::integer(dim)};
    const ValueId whole = graph_.addValue(type, node.id);
    node.results = {{whole}};
    emit(std::move(node), part);
    return known->second = whole;
  }

  ValueId wholeBase(ValueId base, size_t part, const Node& reader) {
    return isCut(base) ? gathered(base, part, reader) : base;
  }
  ValueId wholeValue(ValueId v, size_t part, const Node& reader) {
    const Value value = valueOf(v);
    if (!isCut(value.base)) return v;
    return viewOf(gathered(value.base, part, reader), value.type, value.offset, reader);
  }

  // How the parts of an operand's base divide the operand; nothing if the base is whole, or cut across the operand.
  std::optional<ViewCut> cutOf(ValueId v) const {
    const auto parts = cut_.find(graph_.baseOf(v));
    if (parts == cut_.end()) return std::nullopt;
    return cutOfView(parts->second.type, parts->second.dim, parts->second.ends, valueOf(v));
  }

  // --- whole nodes ---------------------------------------------------------------------------------------------------
  void addWhole(Node node) {
    const size_t part = chooseDevice(node);
    for (Arg& arg : node.args)
      forEachId(arg, [&](int64_t& id) { id = wholeValue(static_cast<ValueId>(id), part, node); });
    for (ir::Write& w : node.writes) replaceBefore(node, w, part);
    ir::forEachResult(node, [&](ValueId v) { graph_.values[index(v)].def = node.id; });
    emit(std::move(node), part);
  }

  // An operator that writes its operand needs it as a base of the old layout.
  void replaceBefore(Node& node, ir::Write& w, size_t part) {
    Arg& arg = node.args[index(w.arg)];
    const ValueId read = static_cast<ValueId>(w.element == kNone ? arg.i : arg.ints[index(w.element)]);
    if (read == w.before) return;
    const Type type = graph_.values[index(w.after)].type;
    ValueId before = read;
    if (valueOf(read).base != read) {
      constexpr int64_t kPreserveFormat = 1;  // as in c10::MemoryFormat
      Node copy = ir::nodeBeside(graph_, "aten::clone", node);
      copy.args = {Arg::id(read), Arg::integer(kPreserveFormat)};
      before = graph_.addValue(type, copy.id);
      copy.results = {{before}};
      emit(std::move(copy), part);
    }
    w.before = before;
    (w.element == kNone ? arg.i : arg.ints[index(w.element)]) = before;
  }

  // The device that has the most bytes of the operands; among equal ones, the one with the least work so far.
  size_t chooseDevice(const Node& node) const {
    if (whole_stages_.contains(node.stage)) return 0;
    if (has_memories_[index(node.stage)] && isDealt(node))
      return holder_of_.at({node.stage, gradient_makers_.at(node.stage).at(node.id)});
    std::vector<int64_t> bytes(numParts(node.stage), 0);
    ir::forEachOperand(node, [&](ValueId v) {
      const ValueId base = graph_.baseOf(v);
      const auto maker = made_in_.find(base);
      for (size_t i = 0; i < bytes.size(); ++i)
        if (maker != made_in_.end()
                ? maker->second.isSameTaskAs({node.stage, node.direction, i}) && maker->second.part == i
                : gathered_.contains({base, i, node.stage, node.direction}))
          bytes[i] += valueOf(v).type.extentBytes();
    });
    const std::vector<int64_t>& load = load_[index(node.stage)];
    size_t best = 0;
    for (size_t i = 1; i < bytes.size(); ++i)
      if (std::pair(-bytes[i], load[i]) < std::pair(-bytes[best], load[best])) best = i;
    return best;
  }

  // --- cut nodes -----------------------------------------------------------------------------------------------------
  struct Choice {
    Cut cut;
    std::vector<int64_t> ends = {};
    int64_t whole_parameter_bytes = 0;  // that each memory holds for it, where devices have memories of their own
    int64_t gathered_bytes = 0;
    bool is_uneven = false;  // parts do not begin where kernels begin blocks
    auto cost() const { return std::tuple(whole_parameter_bytes, gathered_bytes, is_uneven); }
  };

  void addNode(Node node) {
    if (const std::optional<Choice> choice = chooseCut(node))
      addParts(node, *choice);
    else
      addWhole(std::move(node));
  }

  std::optional<Choice> chooseCut(const Node& node) {
    const bool is_whole = node.isRandom() || !writesOneWhole(node) || whole_stages_.contains(node.stage);
    if (!trial_ || is_whole || numParts(node.stage) == 1) return std::nullopt;
    std::vector<Choice> choices;
    for (Cut& cut : possibleCuts(graph_, node))
      if (std::optional<Choice> choice = consider(node, std::move(cut))) choices.push_back(std::move(*choice));
    std::ranges::stable_sort(choices, {}, &Choice::cost);
    for (Choice& choice : choices)
      if (keepsBits(node, choice)) return std::move(choice);
    return std::nullopt;
  }

  // An operator in place is cut only if it writes one base as a whole, and that base is cut.
  bool writesOneWhole(const Node& node) const {
    if (node.writes.empty()) return true;
    const ir::Write& w = node.writes[0];
    return node.writes.size() == 1 && w.element == kNone && w.offset == 0 && w.view == valueOf(w.before).type &&
           isCut(w.before);
  }

  std::optional<Choice> consider(const Node& node, Cut cut) const {
    Choice choice{.cut = std::move(cut)};
    if (!resultsAllow(node, choice.cut)) return std::nullopt;
    bool continues = false;
    forEachCutOperand(node, choice.cut, [&](ValueId v, int dim) {
      const std::optional<ViewCut> found = cutOf(v);
      if (continues || !found || found->dim != dim || found->ends.size() != numParts(node.stage)) return;
      choice.ends = found->ends;
      continues = true;
    });
    const size_t parts = numParts(node.stage);
    if (!continues) choice.ends = evenEnds(choice.cut.size, choice.cut.step, static_cast<int64_t>(parts));
    if (choice.ends.size() != parts) return std::nullopt;
    choice.is_uneven = std::any_of(choice.ends.begin(), choice.ends.end() - 1,
                                   [&](int64_t end) { return end % choice.cut.step != 0; });
    std::set<ValueId> gathers;
    bool writes_part = node.writes.empty();
    for (size_t i = 0; i < node.args.size(); ++i)
      forEachId(node.args[i], [&](int64_t id) {
        const auto v = static_cast<ValueId>(id);
        if (has_memories_[index(node.stage)] && choice.cut.operands[i] == kWhole &&
            is_parameter_.contains(graph_.baseOf(v)))
          choice.whole_parameter_bytes += valueOf(v).type.extentBytes();
        if (!isCut(graph_.baseOf(v))) return;
        const bool fits = placeOf(v, choice.cut.operands[i], choice.ends, 0).from != nullptr;
        if (!fits) gathers.insert(graph_.baseOf(v));
        if (!node.writes.empty() && node.writes[0].before == v) writes_part = fits;
      });
    if (!writes_part) return std::nullopt;
    for (ValueId base : gathers) choice.gathered_bytes += cut_.at(base).type.extentBytes();
    if (!gathers.empty() && isDealt(node)) return std::nullopt;
    const bool is_free = continues && gathers.empty();
    if (!is_free && workOf(graph_, node) < kLeastWork) return std::nullopt;
    return choice;
  }

  // Gradients of weights are dealt to the devices as a whole where there are enough of them: only the update waits for
  // them, one device gathers their operands, and their products can be added to the sums at once.
  bool isDealt(const Node& node) const {
    const auto makers = gradient_makers_.find(node.stage);
    return makers != gradient_makers_.end() && makers->second.contains(node.id) &&
           !whole_stages_.contains(node.stage) && makers->second.size() >= kGradientsOfDevice * numParts(node.stage);
  }

  bool resultsAllow(const Node& node, const Cut& cut) const {
    const auto allows = [&](const Type& type, int dim) {
      return dim == kWhole || (isDense(type) && type.sizes[index(dim)] == cut.size);
    };
    if (!node.writes.empty()) return allows(node.writes[0].view, cut.results[0]);
    bool any = false;
    for (size_t r = 0; r < node.results.size(); ++r) {
      if (node.results[r].size() != 1) return false;
      const ValueId v = node.results[r][0];
      if (v == kNone) continue;
      if (valueOf(v).base != v || !allows(valueOf(v).type, cut.results[r])) return false;
      any = any || cut.results[r] != kWhole;
    }
    return any;
  }

  template <class Fn>
  static void forEachCutOperand(const Node& node, const Cut& cut, Fn&& fn) {
    for (size_t i = 0; i < node.args.size(); ++i)
      if (cut.operands[i] != kWhole)
        forEachId(node.args[i], [&](int64_t v) { fn(static_cast<ValueId>(v), cut.operands[i]); });
  }

  // The place of the range of an operand that a part reads. dim: the dimension along which the operand is cut.
  OperandPlace placeOf(ValueId v, int dim, const std::vector<int64_t>& ends, size_t part) const {
    OperandPlace place{.value = valueOf(v)};
    if (dim == kWhole) return place;
    const std::optional<ViewCut> found = cutOf(v);
    if (found && found->dim == dim && found->ends == ends) {
      place.from = &cut_.at(place.value.base);
      place.value = viewInPart(place.from->type, place.from->dim, lengthOf(place.from->ends, part), place.value);
    } else {
      place.value.offset += beginOf(ends, part) * place.value.type.strides[index(dim)];
    }
    place.value.type.sizes[index(dim)] = lengthOf(ends, part);
    return place;
  }

  static void setSizes(Node& node, const Choice& choice, size_t part) {
    if (choice.cut.sizes_arg == kNone) return;
    node.args[index(choice.cut.sizes_arg)].ints[index(choice.cut.results[0])] = lengthOf(choice.ends, part);
  }
  // Asks an operator with a mask for the results that parts make, or for the others. Returns whether any is left.
  static bool setMask(Node& node, const Cut& cut, bool in_parts) {
    if (cut.mask_arg == kNone) return in_parts;
    bool any = false;
    for (size_t r = 0; r < node.results.size(); ++r) {
      int64_t& asks = node.args[index(cut.mask_arg)].ints[r];
      asks = asks != 0 && (cut.results[r] != kWhole) == in_parts;
      any = any || asks != 0;
      if (asks == 0) node.results[r] = {kNone};
    }
    return any;
  }

  std::vector<Type> resultTypes(const Node& node) const {
    std::vector<Type> types;
    if (!node.writes.empty()) return {node.writes[0].view};
    for (const auto& group : node.results) types.push_back(group[0] == kNone ? Type{} : valueOf(group[0]).type);
    return types;
  }
  static std::vector<Type> partTypes(std::vector<Type> types, const Choice& choice, size_t part) {
    for (size_t r = 0; r < types.size(); ++r)
      if (types[r].defined() && choice.cut.results[r] != kWhole)
        types[r] = partType(types[r], choice.cut.results[r], lengthOf(choice.ends, part));
    return types;
  }

  // Tries the cut with numbers.
  bool keepsBits(const Node& node, const Choice& choice) const {
    TrialGraphs trial(graph_);
    const bool writes = !node.writes.empty();
    const auto written = [&](size_t arg) { return writes && arg == index(node.writes[0].arg); };
    const std::vector<ValueId> whole =
        TrialGraphs::add(trial.whole, node, resultTypes(node), [&](size_t arg, ValueId v) {
          const ValueId operand = trial.wholeOperand(v);
          return written(arg) ? TrialGraphs::copyOf(trial.whole, operand) : operand;
        });
    for (size_t i = 0; i < choice.ends.size(); ++i) {
      Node part = node;
      setSizes(part, choice, i);
      setMask(part, choice.cut, /*in_parts=*/true);
      const std::vector<ValueId> made =
          TrialGraphs::add(trial.parts, part, partTypes(resultTypes(part), choice, i), [&](size_t arg, ValueId v) {
            return trial.partOperand(v, placeOf(v, choice.cut.operands[arg], choice.ends, i), i);
          });
      for (size_t r = 0; r < made.size(); ++r) {
        if (made[r] == kNone) continue;
        const Type& type = trial.whole.graph.values[index(whole[r])].type;
        const size_t dim = index(choice.cut.results[r]);
        Type range = type;
        range.sizes[dim] = lengthOf(choice.ends, i);
        trial.compare(whole[r], range, beginOf(choice.ends, i) * type.strides[dim], made[r]);
      }
    }
    Node rest = node;
    if (setMask(rest, choice.cut, /*in_parts=*/false)) {
      const std::vector<ValueId> made = TrialGraphs::add(trial.parts, rest, resultTypes(rest), [&](size_t, ValueId v) {
        return trial.partOperand(v, placeOf(v, kWhole, choice.ends, 0), 0);
      });
      for (size_t r = 0; r < made.size(); ++r)
        if (made[r] != kNone) trial.compare(whole[r], trial.whole.graph.values[index(whole[r])].type, 0, made[r]);
    }
    return trial_(trial.whole.graph, trial.parts.graph);
  }

  void addParts(const Node& node, const Choice& choice) {
    std::map<ValueId, Parts> made;  // by result of the whole
    std::vector<Node> nodes;
    for (size_t i = 0; i < choice.ends.size(); ++i) {
      Node part = ir::nodeBeside(graph_, node.op, node);
      part.args = node.args;
      part.results = node.results;
      part.writes = node.writes;
      part.time_ns = node.time_ns / static_cast<int64_t>(choice.ends.size());
      setSizes(part, choice, i);
      setMask(part, choice.cut, /*in_parts=*/true);
      for (size_t a = 0; a < part.args.size(); ++a)
        forEachId(part.args[a], [&](int64_t& id) {
          const auto v = static_cast<ValueId>(id);
          const OperandPlace place = placeOf(v, choice.cut.operands[a], choice.ends, i);
          const ValueId base = place.from ? place.from->values[i] : wholeBase(graph_.baseOf(v), i, node);
          id = viewOf(base, place.value.type, place.value.offset, node);
        });
      const std::vector<Type> types = partTypes(resultTypes(part), choice, i);
      const auto add = [&](ValueId of, size_t r) {
        const ValueId v = graph_.addValue(types[r], part.id);
        auto [parts, is_new] = made.try_emplace(of);
        if (is_new) parts->second = {valueOf(of).type, choice.cut.results[r], choice.ends, {}};
        parts->second.values.push_back(v);
        return v;
      };
      if (part.writes.empty()) {
        for (size_t r = 0; r < types.size(); ++r)
          if (types[r].defined()) part.results[r] = {add(part.results[r][0], r)};
      } else {
        ir::Write& w = part.writes[0];
        w.before = static_cast<ValueId>(part.args[index(w.arg)].i);
        w.view = types[0];
        w.after = add(w.after, 0);
      }
      nodes.push_back(std::move(part));
    }
    // All parts are in one step. A device that could begin earlier would let the others wait for the rest of its step.
    int32_t step = 0;
    for (size_t i = 0; i < nodes.size(); ++i) step = std::max(step, spotOf(nodes[i], i).step);
    for (size_t i = 0; i < nodes.size(); ++i) emit(std::move(nodes[i]), {node.stage, node.direction, i, step});
    cut_.merge(made);
    Node rest = node;
    if (setMask(rest, choice.cut, /*in_parts=*/false)) addWhole(std::move(rest));
    gatherOutputs(node);
  }

  // Outputs are whole.
  void gatherOutputs(const Node& node) {
    ir::forEachResult(node, [&](ValueId base) {
      if (!isCut(base) || !is_output_.contains(base)) return;
      for (const ir::Output& output : graph_.outputs)
        if (graph_.baseOf(output.value) == base && !result_of_.contains(output.value))
          result_of_[output.value] = wholeValue(output.value, chooseDevice(node), node);
    });
  }

  // --- stages --------------------------------------------------------------------------------------------------------
  //
  // A stage of the pipeline has the steps of its forward or of its backward, whichever has more.
  void numberStages() {
    std::vector<int32_t> steps(graph_.stages.size(), 1);
    for (const Spot& spot : spots_) steps[index(spot.stage)] = std::max(steps[index(spot.stage)], spot.step + 1);
    const auto stepOf = [&](const Spot& spot) {
      return spot.direction == Direction::kForward ? spot.step : steps[index(spot.stage)] - 1 - spot.step;
    };
    using Key = std::tuple<int32_t, int32_t, size_t>;  // stage of the pipeline, step, part
    std::map<Key, int32_t> stage_of;
    std::set<std::pair<int32_t, size_t>> used;  // stage of the pipeline, part
    for (size_t i = 0; i < spots_.size(); ++i) {
      if (out_[i].is_view) continue;
      stage_of[{spots_[i].stage, stepOf(spots_[i]), spots_[i].part}] = kNone;
      used.emplace(spots_[i].stage, spots_[i].part);
    }
    // A device without a part has an empty stage: it takes cores, as the trials did.
    for (int32_t s = 0; index(s) < steps.size(); ++s)
      for (size_t part = 0; part < numParts(s); ++part)
        if (!used.contains({s, part})) stage_of[{s, 0, part}] = kNone;
    std::vector<ir::Stage> stages;
    for (auto& [key, number] : stage_of) {
      const auto& [pipeline, step, part] = key;
      const ir::Stage& whole = graph_.stages[index(pipeline)];
      const int32_t device = whole.isDivided() ? whole.group[part] : whole.device;
      number = static_cast<int32_t>(stages.size());
      stages.push_back({.device = device,
                        .name = cat(whole.name, "/", step, ".", part),
                        .space = rules_.spaceOf(device),
                        .pipeline = pipeline,
                        .group = whole.group});
    }
    for (size_t i = 0; i < out_.size(); ++i) {
      const Spot& spot = spots_[i];
      const auto found = stage_of.find({spot.stage, stepOf(spot), spot.part});
      out_[i].stage = found != stage_of.end() ? found->second : stage_of.lower_bound({spot.stage, 0, 0})->second;
    }
    graph_.stages = std::move(stages);
  }

  ir::Graph& graph_;
  const StageRules& rules_;
  const std::function<bool(const ir::Graph&, const ir::Graph&)>& trial_;
  Views views_;
  std::vector<Node> out_;
  std::vector<Spot> spots_;                                                      // by position in out_
  std::map<ValueId, Spot> made_in_;                                              // by base
  std::map<ValueId, Parts> cut_;                                                 // by base of the old graph
  std::map<std::tuple<ValueId, size_t, int32_t, Direction>, ValueId> gathered_;  // base, device, stage, direction
  std::set<int32_t> whole_stages_;                                               // stages that one device does alone
  std::set<ValueId> is_output_;                                                  // bases of outputs
  std::set<ValueId> is_parameter_;                                               // bases that are parameters
  std::vector<bool> has_memories_;  // by stage of the pipeline: its devices have memories of their own
  std::map<int32_t, std::map<NodeId, int32_t>> gradient_makers_;  // by stage: parameters by the makers of gradients
  std::map<std::pair<int32_t, int32_t>, size_t> holder_of_;       // by stage and parameter: the device of its gradients
  std::map<ValueId, ValueId> result_of_;                          // the whole of each output that was made in parts
  std::vector<ValueId> dropped_views_;
  std::vector<std::vector<int64_t>> load_;  // work so far, by stage of the pipeline and device of its group
};

}  // namespace

Changed shard(ir::Graph& graph, PassContext& context) {
  const auto& stages = graph.stages;
  const bool is_sharded = std::ranges::any_of(stages, [](const ir::Stage& s) { return s.pipeline != kNone; });
  if (is_sharded || std::ranges::none_of(stages, &ir::Stage::isDivided)) return Changed::kNo;
  return Sharding(graph, context.stages, context.gives_same_bits).run();
}

}  // namespace abele::passes
