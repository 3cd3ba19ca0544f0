// Before:  nodes know the user's block                 After:  nodes know their stage, graph.stages names the devices
// Order:   after dce, so that no dead node makes a stage; before lower-optimizer.
// Cost:    O(operands).   Undone by: nothing; a second run finds the same stages.
//
// A forward node gets the stage of its block. Backward runs stage by stage from the last to the first, after all of
// forward. So a backward node may read forward values of any stage, but only gradients of its own and later stages. It
// gets the stage of its forward operation's block, or an earlier one if it reads gradients that are made earlier.
// Under AutoSplit, forward nodes are cut by their ids instead, and a backward node follows the id of its forward
// operation. Source: spec options.md section 9, annotations.md section 1; AutoSplit: ours.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/cat.h"
#include "base/error.h"
#include "ir/constants.h"
#include "ir/rewrite.h"
#include "passes/stage_rules.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr int kNoLimit = std::numeric_limits<int>::max();

bool isForward(const Node& node) { return node.direction == Direction::kForward; }
bool isGradient(const Node& node) {
  return node.direction == Direction::kBackward || node.direction == Direction::kWeightGrad;
}

class StageAssigner {
 public:
  StageAssigner(ir::Graph& graph, const StageRules& rules)
      : graph_(graph),
        rules_(rules),
        makers_(graph),
        asked_(askedStages(graph, rules)),
        stage_(graph.nodes.size(), kNone) {
    positions_ = ir::positionsById(graph);
    findExternals();
  }

  Changed run() {
    askForward();
    if (numbersBlocks() && findBackEdge().reader == nullptr) joinNeighbours();
    bool runs = !rules_.ordered && findBackEdge().reader != nullptr;
    if (rules_.ordered) {
      moveCopiesOfInputs();
      keepWritersTogether();
      requireOrder();
    }
    if (runs)
      numberByRuns();
    else
      numberByAskedStage();
    placeGradients();
    return store();
  }

 private:
  struct BackEdge {
    const Node* reader = nullptr;
    const Node* maker = nullptr;
  };

  int& stageOf(const Node& node) { return stage_[positions_[node.id]]; }

  bool splits() const { return rules_.auto_stage == AutoStage::kAutoSplit; }
  int numberOfCut(NodeId id) const {
    return static_cast<int>(std::upper_bound(rules_.cuts.begin(), rules_.cuts.end(), id) - rules_.cuts.begin());
  }

  // Without any block, all code belongs to the implicit block.
  int32_t blockOf(const Node& node) const { return node.block == kNone && graph_.blocks.size() <= 1 ? 0 : node.block; }

  // --- Forward, in the user's numbering -----------------------------------------------------------------------------

  // stage_ holds the user's stage numbers until one of the number...() functions runs.
  void askForward() {
    const std::vector<bool> constant = ir::constantForward(graph_);
    std::vector<Node*> free;
    for (Node& node : graph_.nodes) {
      if (!isForward(node)) continue;
      const bool is_free = node.is_view || constant[positions_[node.id]];
      if (splits() ? !is_free || rules_.cuts.empty() : blockOf(node) != kNone)
        stageOf(node) = splits() ? numberOfCut(node.id) : asked_[blockOf(node)].number;
      else if (is_free)
        free.push_back(&node);
      else
        throwNoBlock(node);
    }
    placeFree(free);
  }

  [[noreturn]] void throwNoBlock(const Node& node) {
    throwUser(ErrorCode::E0302, {.what = cat(node.op, " runs outside every block"),
                                 .at = describe(graph_, node),
                                 .found = "No active Block, all the ops must belong to a Block",
                                 .expected = "all operations inside a block once a Block was closed",
                                 .remedy = cat("begin a block before this line, or use ",
                                               inLanguage("abele::beginBlock"), ", which stays active")});
  }

  // Free nodes do no work that belongs to a stage. A view goes to the stage of its base. A constant goes where forward
  // first needs it; if forward does not need it, it stays where the program made it.
  void placeFree(const std::vector<Node*>& free) {
    const std::vector<int> made_in = stagesByPosition();
    ir::placeAtFirstReader(graph_, made_in, stage_);
    for (Node* node : free) {
      if (stageOf(*node) != kNone) continue;
      Node* maker = nullptr;
      ir::forEachResult(*node, [&](ValueId v) { maker = makers_.of(v); });
      const auto position = static_cast<size_t>(positions_[node->id]);
      stage_[position] = maker != nullptr && maker != node ? stageOf(*maker) : made_in[position];
    }
  }

  // By position: the stage of the last node before it that has one, or the stage of its id's part.
  std::vector<int> stagesByPosition() const {
    std::vector<int> stages(graph_.nodes.size(), 0);
    int last = 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (stage_[i] != kNone) last = stage_[i];
      stages[i] = splits() ? numberOfCut(graph_.nodes[i].id) : last;
    }
    return stages;
  }

  // True for a pipeline whose stages the user did not list. Consecutive stages on one device are then merged, because
  // they cannot run at the same time. Listed stages stay apart, because the user may want their weights fetched one by
  // one.
  bool numbersBlocks() const {
    return rules_.ordered && rules_.stages.empty() && rules_.auto_stage == AutoStage::kAutoIncrement;
  }
  void joinNeighbours() {
    std::map<int, int> joined;  // number -> first number of its run of stages on one device
    for (int number : stage_)
      if (number != kNone) joined[number] = number;
    int previous = kNone;
    for (auto& [number, first] : joined) {
      if (previous != kNone && devicesOf(previous) == devicesOf(number)) first = joined[previous];
      previous = number;
    }
    for (int& stage : stage_)
      if (stage != kNone) stage = joined[stage];
    for (AskedStage& asked : asked_)
      if (auto it = joined.find(asked.number); it != joined.end()) asked.number = it->second;
  }

  // --- Writes of externals ------------------------------------------------------------------------------------------

  // external_[base] is the external whose contents a base value is, at the start or after writes.
  void findExternals() {
    external_.assign(graph_.values.size(), kNone);
    for (const ir::Input& input : graph_.inputs)
      if (input.kind != ir::InputKind::kArgument) external_[input.value] = input.external;
    for (const Node& node : graph_.nodes)
      for (const ir::Write& w : node.writes) external_[w.after] = external_[w.before];
  }

  // A copy of an input into an external may run in any stage. Stages before it could not read the external, so it goes
  // to the first stage that reads it. Such copies may read each other's externals.
  void moveCopiesOfInputs() {
    const auto copies_input = [&](const Node& node) {
      return isForward(node) && node.op == "aten::copy_" && !node.writes.empty() &&
             external_[node.writes.front().after] != kNone &&
             makers_.of(static_cast<ValueId>(node.args[1].i)) == nullptr;
    };
    for (bool moves = std::ranges::any_of(graph_.nodes, copies_input); moves;) {
      moves = false;
      std::map<int32_t, int> first_reader;  // by external
      for (const Node& node : graph_.nodes) {
        if (!isForward(node) || node.is_view) continue;
        ir::forEachOperand(node, [&](ValueId v) {
          int& first = first_reader.emplace(external_[graph_.baseOf(v)], stageOf(node)).first->second;
          first = std::min(first, stageOf(node));
        });
      }
      for (Node& node : graph_.nodes) {
        const int first = copies_input(node) ? first_reader.at(external_[node.writes.front().after]) : kNone;
        if (first == kNone || first == stageOf(node)) continue;
        stageOf(node) = first;
        moves = true;
      }
    }
  }

  // An external has one home and stages overlap in time, so only one stage may write it. This handles forward nodes
  // only.
  void keepWritersTogether() {
    for (Node& node : graph_.nodes) {
      if (!isForward(node)) continue;
      for (const ir::Write& w : node.writes) {
        if (external_[w.after] == kNone) continue;
        auto [first, is_first] = writer_.emplace(external_[w.after], &node);
        int stage = stageOf(*first->second);
        if (is_first || stageOf(node) == stage) continue;
        if (latestForwardOperand(node) > stage) throwTwoWriters(*first->second, node, external_[w.after]);
        stageOf(node) = stage;
      }
    }
  }

  int latestForwardOperand(const Node& node) {
    int latest = 0;
    ir::forEachOperand(node, [&](ValueId v) {
      Node* maker = makers_.of(v);
      if (maker != nullptr && isForward(*maker)) latest = std::max(latest, stageOf(*maker));
    });
    return latest;
  }

  [[noreturn]] void throwTwoWriters(const Node& first, const Node& second, int32_t external) {
    throwUser(ErrorCode::E0303, {.what = cat(graph_.externals[external].name, " is written in stage ", stageName(first),
                                             " and in stage ", stageName(second)),
                                 .at = describe(graph_, second),
                                 .found = cat("first written by ", describe(graph_, first)),
                                 .expected = "only one stage that writes the buffer in a pipelined graph",
                                 .remedy = "put both lines into blocks of one stage, or use ShardedExecution"});
  }

  // --- Order of forward ---------------------------------------------------------------------------------------------

  BackEdge findBackEdge() {
    BackEdge edge;
    for (const Node& node : graph_.nodes) {
      if (!isForward(node) || node.is_view) continue;
      ir::forEachOperand(node, [&](ValueId v) {
        const Node* maker = makers_.of(v);
        if (edge.reader == nullptr && maker != nullptr && isForward(*maker) && stageOf(*maker) > stageOf(node))
          edge = {&node, maker};
      });
      if (edge.reader != nullptr) break;
    }
    return edge;
  }

  void requireOrder() {
    BackEdge edge = findBackEdge();
    if (edge.reader == nullptr) return;
    bool same_as_ipu = rules_.stages.empty() && rules_.auto_stage == AutoStage::kSameAsIpu;
    const std::string other = same_as_ipu ? inLanguage("AutoStage::kAutoIncrement") : "ShardedExecution";
    std::string line = edge.reader->source.empty() ? "the line that reads it" : edge.reader->source;
    throwUser(ErrorCode::E0303,
              {.what = cat("a forward value flows from stage ", stageOf(*edge.maker), " back to stage ",
                           stageOf(*edge.reader)),
               .at = describe(graph_, *edge.reader),
               .found = cat("made in stage ", stageOf(*edge.maker), " by ", describe(graph_, *edge.maker)),
               .expected = "producer stage <= consumer stage in a pipelined graph",
               .remedy = cat("begin a block of stage ", stageOf(*edge.maker), " or later before ", line, ", or use ",
                             other)});
  }

  // --- From the user's numbers to positions in graph.stages ---------------------------------------------------------

  std::vector<int32_t> devicesOf(int number) const {
    std::vector<int32_t> devices = {splits() && rules_.devices > 0 ? number % rules_.devices : number};
    if (!splits())
      for (const AskedStage& asked : asked_)
        if (asked.number == number) devices = asked.devices;
    if (rules_.group == 1) return devices;
    std::vector<int32_t> group(static_cast<size_t>(rules_.group));
    std::iota(group.begin(), group.end(), devices.front() * rules_.group);
    return group;
  }
  void addStage(int number) {
    positions_of_number_[number].push_back(static_cast<int>(stages_.size()));
    std::vector<int32_t> devices = devicesOf(number);
    ir::Stage& stage = stages_.emplace_back(ir::Stage{devices.front(), cat(number), rules_.spaceOf(devices.front())});
    if (devices.size() > 1) stage.group = std::move(devices);
  }

  // Numbers without forward nodes get no stage.
  void numberByAskedStage() {
    std::set<int> numbers;
    for (size_t i = 0; i < stage_.size(); ++i)
      if (stage_[i] != kNone) numbers.insert(stage_[i]);
    if (numbers.empty()) numbers.insert(0);
    for (int number : numbers) addStage(number);
    for (int& stage : stage_)
      if (stage != kNone) stage = positions_of_number_[stage][0];
  }

  // For sharded code that returns to an earlier stage. Each time the trace enters a stage, it gets a new position, so
  // that stages still run one after the other.
  void numberByRuns() {
    int active = kNone;
    for (size_t i = 0; i < stage_.size(); ++i) {
      if (stage_[i] == kNone) continue;
      bool enters = blockOf(graph_.nodes[i]) != kNone && stage_[i] != active;
      if (enters || stages_.empty()) addStage(active = stage_[i]);
      stage_[i] = static_cast<int>(stages_.size()) - 1;
    }
  }

  // --- Backward -----------------------------------------------------------------------------------------------------

  void placeGradients() {
    for (Node& node : graph_.nodes) {
      if (!isGradient(node)) continue;
      int limit = kNoLimit;  // the earliest stage that makes a gradient which this node reads
      int latest_forward = kNone;
      ir::forEachOperand(node, [&](ValueId v) {
        Node* maker = makers_.of(v);
        if (maker == nullptr || maker == &node) return;
        if (isGradient(*maker))
          limit = std::min(limit, stageOf(*maker));
        else
          latest_forward = std::max(latest_forward, stageOf(*maker));
      });
      int& stage = stageOf(node);
      stage = stageOfBlock(node, limit);
      // Sums of gradients, for example, have no forward operation: they run in the stage of their operands.
      if (stage == kNone) stage = limit != kNoLimit ? limit : latest_forward;
      if (stage == kNone) stage = static_cast<int>(stages_.size()) - 1;
      keepWithWriter(node, limit);
    }
  }

  // The last position of the node's block that the limit allows, or the limit if it allows none of them.
  int stageOfBlock(const Node& node, int limit) {
    if (splits() ? node.forward == kNone : blockOf(node) == kNone) return kNone;
    auto found = positions_of_number_.find(splits() ? numberOfCut(node.forward) : asked_[blockOf(node)].number);
    if (found == positions_of_number_.end()) return kNone;
    int stage = kNone;
    for (int position : found->second)
      if (position <= limit) stage = position;
    return stage == kNone ? limit : stage;
  }

  void keepWithWriter(Node& node, int limit) {
    if (!rules_.ordered) return;
    for (const ir::Write& w : node.writes) {
      if (external_[w.after] == kNone) continue;
      auto [first, is_first] = writer_.emplace(external_[w.after], &node);
      int stage = stageOf(*first->second);
      if (!is_first && stage > limit) throwTwoWriters(*first->second, node, external_[w.after]);
      stageOf(node) = stage;
    }
  }

  std::string stageName(const Node& node) { return stages_.empty() ? cat(stageOf(node)) : stages_[stageOf(node)].name; }

  Changed store() {
    bool changed = graph_.stages != stages_;
    graph_.stages = std::move(stages_);
    for (size_t i = 0; i < stage_.size(); ++i) {
      Node& node = graph_.nodes[i];
      if (node.direction == Direction::kUpdate) continue;
      changed = changed || node.stage != stage_[i];
      node.stage = stage_[i];
    }
    return changed ? Changed::kYes : Changed::kNo;
  }

  ir::Graph& graph_;
  const StageRules& rules_;
  ir::Makers makers_;
  std::vector<AskedStage> asked_;                        // by block
  std::vector<int32_t> positions_;                       // position of each node, by id
  std::vector<int> stage_;                               // by position of the node
  std::vector<int32_t> external_;                        // by base
  std::map<int32_t, Node*> writer_;                      // first writer, by external
  std::vector<ir::Stage> stages_;                        // becomes graph.stages
  std::map<int, std::vector<int>> positions_of_number_;  // user's number -> positions in stages_
};

}  // namespace

Changed assignStages(ir::Graph& graph, PassContext& context) { return StageAssigner(graph, context.stages).run(); }

}  // namespace abele::passes
