#include "split/split_chain.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ir/constants.h"
#include "plan/cost.h"
#include "plan/operator_cost.h"

namespace abele::split {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::ValueId;

constexpr int64_t kBytesPerNs = 10;
constexpr size_t kMostPieces = 512;
constexpr int64_t kNearbyShare = 64;
constexpr int32_t kNoIndex = std::numeric_limits<int32_t>::max();

bool isGradient(const Node& node) {
  return node.direction == Direction::kBackward || node.direction == Direction::kWeightGrad;
}

// Numbers the forward operators along the program; every other node belongs to one of them.
class ChainBuilder {
 public:
  ChainBuilder(const ir::Graph& graph, int parts, bool measured) : graph_(graph), parts_(parts), measured_(measured) {}

  SplitChain run() {
    numberForward();
    numberOthers();
    addTimes();
    addMemory();
    addCrossings();
    findLateWork();
    join();
    return std::move(chain_);
  }

 private:
  using Index = int32_t;

  struct Work {
    Piece piece;
    std::vector<std::pair<Index, int64_t>> late;  // (first operator that waits for it, time)
  };

  // Views do no work. An operator that depends on constants only belongs to the place where forward first reads it,
  // because its result would only have to be handed over. An operator that forward does not read stays where the
  // program made it.
  void numberForward() {
    index_of_.assign(graph_.nodes.size(), kNone);
    maker_.assign(graph_.values.size(), kNone);
    const std::vector<bool> constant = ir::constantForward(graph_);
    std::vector<Index> made_in(graph_.nodes.size(), kNone);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (!node.is_view) ir::forEachResult(node, [&](ValueId v) { maker_[graph_.baseOf(v)] = static_cast<Index>(i); });
      if (node.is_view || node.direction != Direction::kForward) continue;
      made_in[i] = static_cast<Index>(work_.size());
      if (constant[i]) continue;
      index_of_[i] = static_cast<Index>(work_.size());
      Piece piece;
      // Views directly before an operator belong to it.
      piece.first = work_.empty() ? 0 : graph_.nodes[work_.back().piece.last_position].id + 1;
      piece.first_position = piece.last_position = static_cast<int32_t>(i);
      work_.push_back({piece, {}});
    }
    if (work_.empty()) work_.push_back({});
    for (Index& place : made_in) place = std::min(place, static_cast<Index>(work_.size()) - 1);
    ir::placeAtFirstReader(graph_, made_in, index_of_);
  }

  // As in assign-stages: a node belongs to its forward node's operator, but to no later one than the makers of
  // gradients that it reads.
  void numberOthers() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || node.direction == Direction::kForward) continue;
      Index limit = kNoIndex, latest_forward = kNone;
      ir::forEachOperand(node, [&](ValueId v) {
        const Index maker = maker_[graph_.baseOf(v)];
        if (maker == kNone || maker >= static_cast<Index>(i)) return;
        const Index index = index_of_[maker];
        if (graph_.nodes[maker].direction == Direction::kForward)
          latest_forward = std::max(latest_forward, index);
        else
          limit = std::min(limit, index);
      });
      Index index = node.forward != kNone && isGradient(node) ? indexOfId(node.forward) : kNone;
      if (index == kNone) index = limit != kNoIndex ? limit : latest_forward;
      if (index == kNone) index = count() - 1;
      index_of_[i] = std::min(index, limit);
    }
  }

  // The first operator with at least this id. Views and removed nodes belong to the operator after them.
  Index indexOfId(ir::NodeId id) const {
    const auto found = std::lower_bound(work_.begin(), work_.end(), id, [&](const Work& work, ir::NodeId wanted) {
      return work.piece.last_position < 0 || graph_.nodes[work.piece.last_position].id < wanted;
    });
    return std::min(static_cast<Index>(found - work_.begin()), count() - 1);
  }

  Index count() const { return static_cast<Index>(work_.size()); }
  Work& workOf(size_t node) { return work_[index_of_[node]]; }

  int64_t timeOf(const Node& node) const {
    return measured_ && node.time_ns > 0 ? node.time_ns : plan::estimateNodeNs(graph_, node);
  }

  void addTimes() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view) continue;
      const int64_t ns = timeOf(node);
      Piece& piece = workOf(i).piece;
      if (node.direction == Direction::kForward)
        piece.forward_ns += ns;
      else if (node.direction == Direction::kUpdate)
        piece.update_ns += ns;
      else
        piece.backward_ns += ns;
    }
  }

  void addMemory() {
    std::vector<bool> seen(graph_.values.size(), true);
    for (const ir::Input& input : graph_.inputs) seen[input.value] = input.kind == ir::InputKind::kArgument;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view) continue;
      Piece& piece = workOf(i).piece;
      // An external belongs to the operator that touches it first.
      ir::forEachOperand(node, [&](ValueId v) {
        const ValueId base = graph_.baseOf(v);
        if (!seen[base]) piece.persistent_bytes += graph_.values[base].type.extentBytes();
        seen[base] = true;
      });
      int64_t made = 0;
      ir::forEachResult(node, [&](ValueId v) { made += graph_.values[v].type.extentBytes(); });
      piece.transient_bytes = std::max(piece.transient_bytes, made);
    }
  }

  // Values between operators of forward, and values that backward reads.
  void addCrossings() {
    std::vector<Index> last_reader(graph_.values.size(), kNone);
    std::vector<bool> kept(graph_.values.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view) continue;
      ir::forEachOperand(node, [&](ValueId v) {
        const ValueId base = graph_.baseOf(v);
        if (node.direction == Direction::kForward)
          last_reader[base] = std::max(last_reader[base], index_of_[i]);
        else if (isGradient(node))
          kept[base] = true;
      });
    }
    std::vector<int64_t> all(work_.size() + 1, 0), unkept(work_.size() + 1, 0);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || node.direction != Direction::kForward) continue;
      ir::forEachResult(node, [&](ValueId v) {
        const int64_t bytes = graph_.values[v].type.extentBytes();
        if (graph_.baseOf(v) != v) return;
        if (kept[v]) workOf(i).piece.kept_bytes += bytes;
        const Index made = index_of_[i], read = last_reader[v];
        if (read <= made) return;
        for (auto* crossing : {&all, &unkept}) {
          if (crossing == &unkept && kept[v]) continue;
          (*crossing)[static_cast<size_t>(made) + 1] += bytes;
          (*crossing)[static_cast<size_t>(read) + 1] -= bytes;
        }
      });
    }
    int64_t live = 0, live_unkept = 0;
    for (size_t i = 0; i < work_.size(); ++i) {
      work_[i].piece.crossing_bytes = live += all[i];
      work_[i].piece.crossing_only_bytes = live_unkept += unkept[i];
    }
    addReturning();
  }

  // Values between nodes of backward that belong to different operators of forward.
  void addReturning() {
    std::vector<Index> first_reader(graph_.values.size(), kNoIndex);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || !isGradient(node)) continue;
      ir::forEachOperand(node, [&](ValueId v) {
        Index& first = first_reader[graph_.baseOf(v)];
        first = std::min(first, index_of_[i]);
      });
    }
    std::vector<int64_t> change(work_.size() + 1, 0);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || !isGradient(node)) continue;
      ir::forEachResult(node, [&](ValueId v) {
        const Index read = first_reader[v], made = index_of_[i];
        if (graph_.baseOf(v) != v || read >= made) return;
        change[static_cast<size_t>(read) + 1] += graph_.values[v].type.extentBytes();
        change[static_cast<size_t>(made) + 1] -= graph_.values[v].type.extentBytes();
      });
    }
    int64_t live = 0;
    for (size_t i = 0; i < work_.size(); ++i) work_[i].piece.returning_bytes = live += change[i];
  }

  // The rule of the pass split-weight-gradient, for all cuts at once. Work of backward is late in a stage if the stage
  // begins no later than every operator of backward that waits for that work.
  void findLateWork() {
    std::vector<Index> needed(graph_.values.size(), kNoIndex);
    for (const ir::Output& output : graph_.outputs) {
      const bool is_sum =
          output.kind == ir::OutputKind::kUpdate && graph_.externals[output.target].kind != ir::InputKind::kBuffer;
      if (!is_sum) needed[graph_.baseOf(output.value)] = kNone;
    }
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || !isGradient(node)) continue;
      Index first = index_of_[i], parameters = first;
      ir::forEachResult(node, [&](ValueId v) { first = std::min(first, needed[graph_.baseOf(v)]); });
      ir::forEachOperand(node, [&](ValueId v) {
        Index& other = needed[graph_.baseOf(v)];
        other = std::min(other, first);
      });
      int64_t ns = timeOf(node);
      if (makesParametersApart(node)) {
        for (size_t r = 1; r < node.results.size(); ++r)
          if (node.results[r][0] >= 0) parameters = std::min(parameters, needed[graph_.baseOf(node.results[r][0])]);
        if (parameters > first) workOf(i).late.emplace_back(parameters, ns / 2);
        if (parameters > first) ns -= ns / 2;
      }
      if (first != kNone) workOf(i).late.emplace_back(first, ns);
    }
  }

  // Nodes that the pass takes apart; half of their time is for parameters.
  static bool makesParametersApart(const Node& node) {
    return node.op == "aten::convolution_backward" && node.results.size() == 3 && node.args.back().ints.size() == 3 &&
           node.args.back().ints[0] != 0 && (node.args.back().ints[1] != 0 || node.args.back().ints[2] != 0);
  }

  // --- boundaries ----------------------------------------------------------------------------------------------------

  // glued[i]: no boundary directly before operator i.
  std::vector<bool> glue() const {
    std::vector<int32_t> external(graph_.values.size(), kNone);
    std::vector<bool> written(graph_.externals.size(), false);
    for (const ir::Input& input : graph_.inputs)
      if (input.kind != ir::InputKind::kArgument) external[input.value] = input.external;
    std::vector<std::pair<Index, Index>> touched(graph_.externals.size(), {count(), kNone});
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      for (const ir::Write& w : node.writes) {
        external[w.after] = external[w.before];
        if (external[w.after] != kNone && node.direction == Direction::kForward) written[external[w.after]] = true;
      }
      if (node.is_view || node.direction == Direction::kUpdate) continue;
      ir::forEachOperand(node, [&](ValueId v) {
        const int32_t e = external[graph_.baseOf(v)];
        if (e == kNone) return;
        auto& [first, last] = touched[e];
        first = std::min(first, index_of_[i]);
        last = std::max(last, index_of_[i]);
      });
    }
    std::vector<bool> glued(work_.size(), false);
    for (size_t e = 0; e < touched.size(); ++e)
      for (Index i = touched[e].first + 1; written[e] && i <= touched[e].second; ++i) glued[i] = true;
    return glued;
  }

  // Takes boundaries with few bytes first. Each one excludes nearby boundaries that hand over more.
  std::vector<size_t> chooseBoundaries() const {
    const std::vector<bool> glued = glue();
    std::vector<int64_t> work_before(work_.size() + 1, 0);
    std::vector<size_t> order;
    for (size_t i = 0; i < work_.size(); ++i) {
      work_before[i + 1] = work_before[i] + work_[i].piece.forward_ns + work_[i].piece.backward_ns;
      if (i > 0 && !glued[i]) order.push_back(i);
    }
    const auto bytes = [&](size_t i) { return work_[i].piece.crossing_bytes; };
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return bytes(a) < bytes(b); });
    const size_t most = std::max(kMostPieces, 4 * static_cast<size_t>(parts_));
    const size_t fewest = 4 * static_cast<size_t>(parts_);
    std::vector<size_t> all = order;
    std::ranges::sort(all);
    if (all.size() <= fewest) return all;
    for (int64_t nearby = std::max<int64_t>(1, work_before.back() / (kNearbyShare * parts_));; nearby *= 2) {
      std::vector<size_t> chosen = select(order, work_before, nearby, /*thin=*/false);
      if (chosen.size() < fewest) return all;
      if (chosen.size() > most) chosen = select(order, work_before, nearby, /*thin=*/true);
      if (chosen.size() <= most) return chosen;
    }
  }

  // thin: equal boundaries exclude each other too.
  std::vector<size_t> select(const std::vector<size_t>& order, const std::vector<int64_t>& work_before, int64_t nearby,
                             bool thin) const {
    // The fewest bytes of a chosen boundary nearby.
    std::vector<int64_t> least(work_.size(), std::numeric_limits<int64_t>::max());
    std::vector<size_t> chosen;
    for (size_t i : order) {
      const int64_t bytes = work_[i].piece.crossing_bytes;
      if (thin ? least[i] <= bytes : least[i] < bytes) continue;
      chosen.push_back(i);
      for (size_t j = i; j < work_.size() && work_before[j] - work_before[i] <= nearby; ++j)
        least[j] = std::min(least[j], bytes);
      for (size_t j = i; j > 0 && work_before[i] - work_before[j] <= nearby; --j) least[j] = std::min(least[j], bytes);
    }
    std::ranges::sort(chosen);
    return chosen;
  }

  void join() {
    chain_.training = graph_.training;
    std::vector<size_t> begins = chooseBoundaries();
    begins.insert(begins.begin(), 0);
    const size_t pieces = begins.size();
    std::vector<size_t> piece_of(work_.size());
    for (size_t p = 0; p < pieces; ++p) {
      const size_t end = p + 1 < pieces ? begins[p + 1] : work_.size();
      Piece joined = work_[begins[p]].piece;
      piece_of[begins[p]] = p;
      for (size_t i = begins[p] + 1; i < end; ++i) {
        const Piece& piece = work_[i].piece;
        joined.last_position = piece.last_position;
        joined.forward_ns += piece.forward_ns;
        joined.backward_ns += piece.backward_ns;
        joined.update_ns += piece.update_ns;
        joined.persistent_bytes += piece.persistent_bytes;
        joined.kept_bytes += piece.kept_bytes;
        joined.transient_bytes = std::max(joined.transient_bytes, piece.transient_bytes);
        piece_of[i] = p;
      }
      chain_.pieces.push_back(joined);
    }
    if (!graph_.training) return;
    // late[b][e] first holds the work of piece e - 1 that nothing before piece b waits for, and then its sums over
    // pieces.
    auto& late = chain_.late_ns;
    late.assign(pieces + 1, std::vector<int64_t>(pieces + 1, 0));
    for (size_t i = 0; i < work_.size(); ++i)
      for (const auto& [first, ns] : work_[i].late) late[piece_of[first]][piece_of[i] + 1] += ns;
    for (size_t b = pieces; b-- > 0;)
      for (size_t e = 0; e <= pieces; ++e) late[b][e] += late[b + 1][e];
    for (auto& row : late) std::partial_sum(row.begin(), row.end(), row.begin());
  }

  const ir::Graph& graph_;
  int parts_;
  bool measured_;
  std::vector<Index> index_of_;  // by position of the node: the forward operator that it belongs to
  std::vector<Index> maker_;     // by base value: position of the node that makes it
  std::vector<Work> work_;       // by forward operator
  SplitChain chain_;
};

}  // namespace

schedule::StageCost SplitChain::cost(size_t begin, size_t end) const {
  schedule::StageCost cost{0, 0, 0, 0};
  for (size_t i = begin; i < end; ++i) {
    cost.forward_ns += pieces[i].forward_ns;
    cost.backward_ns += pieces[i].backward_ns;
    cost.update_ns += pieces[i].update_ns;
  }
  if (!late_ns.empty()) {
    cost.weight_grad_ns = late_ns[begin][end] - late_ns[begin][begin];
    cost.backward_ns -= cost.weight_grad_ns;
  }
  cost.forward_ns += pieces[begin].crossing_bytes / kBytesPerNs;
  if (training && end < pieces.size()) cost.backward_ns += pieces[end].crossing_bytes / kBytesPerNs;
  return cost;
}

schedule::StageMemory SplitChain::memory(size_t begin, size_t end) const {
  schedule::StageMemory memory;
  for (size_t i = begin; i < end; ++i) {
    memory.persistent_bytes += pieces[i].persistent_bytes;
    memory.stash_bytes += pieces[i].kept_bytes;
    memory.transient_bytes = std::max(memory.transient_bytes, pieces[i].transient_bytes);
  }
  if (end < pieces.size()) memory.stash_bytes += pieces[end].crossing_only_bytes;
  return memory;
}

SplitChain splitChain(const ir::Graph& graph, int parts, bool measured) {
  ABELE_CHECK(parts >= 1, "a chain for ", parts, " parts");
  return ChainBuilder(graph, parts, measured).run();
}

}  // namespace abele::split
