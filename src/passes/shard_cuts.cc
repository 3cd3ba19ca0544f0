#include "passes/shard_cuts.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>

#include "ir/rewrite.h"

namespace abele::passes {
namespace {

using ir::Graph;
using ir::Node;

// Kernels of products and element-wise loops work on blocks of this many rows or columns. Parts that begin elsewhere
// often have other last bits.
constexpr int64_t kBlock = 16;

// The cuts of one node, while they are listed.
class CutList {
 public:
  CutList(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  size_t numArgs() const { return node_.args.size(); }
  const Arg& arg(int i) const { return node_.args[static_cast<size_t>(i)]; }
  /// The type of a tensor argument; undefined if it is absent.
  const Type& operand(int i) const {
    static const Type none;
    const Arg& a = arg(i);
    if (a.kind == Arg::Kind::kId && a.i >= 0) return graph_.values[static_cast<size_t>(a.i)].type;
    if (a.kind == Arg::Kind::kIdList && !a.ints.empty()) return graph_.values[static_cast<size_t>(a.ints[0])].type;
    return none;
  }
  int rankOf(int i) const { return static_cast<int>(operand(i).sizes.size()); }
  /// The type of the first result, or of the region that an operator in place writes.
  const Type& result() const {
    if (!node_.writes.empty()) return node_.writes[0].view;
    static const Type none;
    for (const auto& group : node_.results)
      for (ir::ValueId v : group)
        if (v >= 0) return graph_.values[static_cast<size_t>(v)].type;
    return none;
  }

  /// Adds a cut. operands: {argument, dimension} pairs; the other arguments are read whole.
  Cut* add(std::initializer_list<std::array<int, 2>> operands, std::vector<int> results, int64_t size, int64_t step) {
    if (size < 2) return nullptr;
    Cut cut{.operands = std::vector<int>(numArgs(), kWhole), .results = std::move(results), .size = size, .step = step};
    for (const auto& [index, dim] : operands) cut.operands[static_cast<size_t>(index)] = dim;
    cut.results.resize(std::max<size_t>(node_.results.size(), 1), kWhole);
    cuts.push_back(std::move(cut));
    return &cuts.back();
  }
  /// The dimension of an operand that a dimension of the result of this rank broadcasts from, or kWhole.
  int broadcast(int i, int dim, int rank) const {
    const int own = dim - (rank - rankOf(i));
    return operand(i).defined() && own >= 0 && operand(i).sizes[static_cast<size_t>(own)] > 1 ? own : kWhole;
  }

  std::vector<Cut> cuts;

 private:
  const Graph& graph_;
  const Node& node_;
};

int64_t at(const std::vector<int64_t>& list, int i) { return list[static_cast<size_t>(i)]; }
int wrapped(int64_t dim, int rank) { return static_cast<int>(dim < 0 ? dim + rank : dim); }

// A step along a dimension at which blocks of rows begin; for the last dimension, blocks of columns.
int64_t stepOf(const Type& type, int dim) {
  const int last = static_cast<int>(type.sizes.size()) - 1;
  int64_t rows = 1;
  for (int d = dim + 1; d < last; ++d) rows *= at(type.sizes, d);
  return kBlock / std::gcd(kBlock, std::max<int64_t>(rows, 1));
}

void elementwise(CutList& list) {
  const Type& type = list.result();
  const int rank = static_cast<int>(type.sizes.size());
  for (int d = 0; d < rank; ++d)
    if (Cut* cut = list.add({}, {d}, at(type.sizes, d), stepOf(type, d)))
      for (size_t i = 0; i < list.numArgs(); ++i) cut->operands[i] = list.broadcast(static_cast<int>(i), d, rank);
}

// (a, b), or (bias, a, b), of matrices or of batches of matrices.
void product(CutList& list) {
  const Type& type = list.result();
  const int rank = static_cast<int>(type.sizes.size());
  const bool has_bias = list.numArgs() > 2;
  const int a = has_bias ? 1 : 0, b = a + 1;
  for (int d = 0; d < rank; ++d) {
    Cut* cut = list.add({}, {d}, at(type.sizes, d), d < rank - 2 ? 1 : kBlock);
    if (cut == nullptr) continue;
    if (d != rank - 1) cut->operands[static_cast<size_t>(a)] = d;
    if (d != rank - 2) cut->operands[static_cast<size_t>(b)] = d;
    if (has_bias) cut->operands[0] = list.broadcast(0, d, rank);
  }
}

// Tensors [batch, heads, ...] that come before the first number, and a mask that broadcasts to them.
void attention(CutList& list) {
  int tensors = 0;
  while (list.arg(tensors).kind == Arg::Kind::kId) ++tensors;
  const bool is_backward = tensors > 3;
  const int query = is_backward ? 1 : 0, mask = tensors + 2;
  for (int d = 0; d < 2; ++d) {
    const int64_t size = at(list.operand(query).sizes, d);
    if (size != at(list.operand(query + 1).sizes, d)) continue;  // several heads share keys
    Cut* cut = list.add({}, is_backward ? std::vector<int>{d, d, d} : std::vector<int>{d, d}, size, 1);
    if (cut == nullptr) continue;
    std::fill_n(cut->operands.begin(), tensors, d);
    cut->operands[static_cast<size_t>(mask)] = list.broadcast(mask, d, 4);
  }
}

// (input, weight, bias, ..., 6: transposed, 7: output padding, 8: groups)
void convolution(CutList& list) {
  const Type& type = list.result();
  list.add({{0, 0}}, {0}, at(type.sizes, 0), 1);
  if (list.arg(6).i != 0 || list.arg(8).i != 1) return;
  list.add({{1, 0}, {2, list.operand(2).defined() ? 0 : kWhole}}, {1}, at(type.sizes, 1), kBlock);
}

// (gradient, input, weight, ..., 10: mask of results): the gradient of the input alone.
void convolutionBackward(CutList& list) {
  if (Cut* cut = list.add({{0, 0}, {1, 0}}, {0}, at(list.operand(1).sizes, 0), 1)) cut->mask_arg = 10;
}

// (input, normalised shape, weight, bias, epsilon)
void layerNorm(CutList& list) {
  const int rows = list.rankOf(0) - static_cast<int>(list.arg(1).ints.size());
  for (int d = 0; d < rows; ++d)
    list.add({{0, d}}, {d, d, d}, at(list.operand(0).sizes, d), stepOf(list.operand(0), d));
}

// (gradient, input, normalised shape, mean, 1 / deviation, weight, bias, mask of results)
void layerNormBackward(CutList& list) {
  const int rows = list.rankOf(1) - static_cast<int>(list.arg(2).ints.size());
  for (int d = 0; d < rows; ++d)
    if (Cut* cut =
            list.add({{0, d}, {1, d}, {3, d}, {4, d}}, {d}, at(list.operand(1).sizes, d), stepOf(list.operand(1), d)))
      cut->mask_arg = 7;
}

void softmaxOver(CutList& list, int dim_arg, int tensors) {
  const Type& type = list.operand(0);
  const int rank = list.rankOf(0), dim = wrapped(list.arg(dim_arg).i, std::max(rank, 1));
  for (int d = 0; d < rank; ++d) {
    if (d == dim) continue;
    if (Cut* cut = list.add({}, {d}, at(type.sizes, d), stepOf(type, d)))
      std::fill_n(cut->operands.begin(), tensors, d);
  }
}
void softmax(CutList& list) { softmaxOver(list, 1, 1); }
void softmaxBackward(CutList& list) { softmaxOver(list, 2, 2); }

// (table, indices)
void embedding(CutList& list) {
  for (int d = 0; d < list.rankOf(1); ++d)
    list.add({{1, d}}, {d}, at(list.operand(1).sizes, d), stepOf(list.result(), d));
  list.add({{0, 1}}, {list.rankOf(1)}, at(list.operand(0).sizes, 1), kBlock);
}

// (input, dimensions, whether they stay)
void reduction(CutList& list) {
  const Type& type = list.operand(0);
  const int rank = list.rankOf(0);
  if (list.arg(1).kind != Arg::Kind::kIntList || list.arg(1).ints.empty()) return;
  std::vector<bool> is_summed(static_cast<size_t>(rank), false);
  for (int64_t dim : list.arg(1).ints) is_summed[static_cast<size_t>(wrapped(dim, rank))] = true;
  int made = 0;
  for (int d = 0; d < rank; ++d) {
    const bool summed = is_summed[static_cast<size_t>(d)];
    if (!summed) list.add({{0, d}}, {made}, at(type.sizes, d), stepOf(type, d));
    if (!summed || list.arg(2).i != 0) ++made;
  }
}

// (tensors, dimension)
void concatenation(CutList& list) {
  const Type& type = list.result();
  const int rank = static_cast<int>(type.sizes.size()), dim = wrapped(list.arg(1).i, std::max(rank, 1));
  for (int d = 0; d < rank; ++d)
    if (d != dim) list.add({{0, d}}, {d}, at(type.sizes, d), stepOf(type, d));
}

// (gradient, sizes of the result, dimension, index): the gradient lacks the dimension.
void selectBackward(CutList& list) {
  const Type& type = list.result();
  const int rank = static_cast<int>(type.sizes.size()), dim = wrapped(list.arg(2).i, std::max(rank, 1));
  for (int d = 0; d < rank; ++d) {
    if (d == dim) continue;
    if (Cut* cut = list.add({{0, d < dim ? d : d - 1}}, {d}, at(type.sizes, d), stepOf(type, d))) cut->sizes_arg = 1;
  }
}

// (gradient, sizes of the result, dimension, start, end, step)
void sliceBackward(CutList& list) {
  const Type& type = list.result();
  const int rank = static_cast<int>(type.sizes.size()), dim = wrapped(list.arg(2).i, std::max(rank, 1));
  for (int d = 0; d < rank; ++d) {
    if (d == dim) continue;
    if (Cut* cut = list.add({{0, d}}, {d}, at(type.sizes, d), stepOf(type, d))) cut->sizes_arg = 1;
  }
}

}  // namespace

std::vector<Cut> possibleCuts(const Graph& graph, const Node& node) {
  static const std::map<std::string_view, void (*)(CutList&)> kFamilies = {
#define ABELE_CUT(name, family) {name, family},
#include "passes/shard_cuts.def"
#undef ABELE_CUT
  };
  const auto family = kFamilies.find(node.op);
  if (family == kFamilies.end()) return {};
  CutList list(graph, node);
  family->second(list);
  return std::move(list.cuts);
}

std::set<int32_t> stagesThatStayWhole(Graph& graph) {
  std::vector<int32_t> memory(graph.values.size(), ir::kNone);  // by base: the external whose contents it is
  std::map<int32_t, std::set<int32_t>> stages;                  // by external
  std::map<int32_t, int> uses;
  std::set<int32_t> written, found;
  for (const ir::Input& input : graph.inputs)
    if (input.kind != ir::InputKind::kArgument) memory[input.value] = input.external;
  const auto use = [&](int32_t external, const Node& node) {
    stages[external].insert(node.stage);
    ++uses[external];
  };
  for (const Node& node : graph.nodes) {
    if (node.is_view) continue;
    std::set<int32_t> read;
    ir::forEachOperand(node, [&](ir::ValueId v) { read.insert(memory[graph.baseOf(v)]); });
    for (const ir::Write& w : node.writes) {
      const int32_t external = memory[w.after] = memory[graph.baseOf(w.before)];
      if (external != ir::kNone) written.insert(external);
    }
    for (int32_t external : read)
      if (external != ir::kNone) use(external, node);
  }
  const ir::Makers makers(graph);
  for (const ir::Output& output : graph.outputs) {
    const Node* maker = makers.of(output.value);
    const int32_t external = memory[graph.baseOf(output.value)];
    if (output.kind == ir::OutputKind::kUpdate && external != output.target && maker != nullptr) {
      written.insert(output.target);
      use(output.target, *maker);
    } else if (output.kind == ir::OutputKind::kResult && external != ir::kNone) {
      ++uses[external];
    }
  }
  for (int32_t external : written)
    if (uses[external] > 1) found.insert(stages[external].begin(), stages[external].end());
  return found;
}

int64_t workOf(const Graph& graph, const Node& node) {
  constexpr int64_t kOfElement = 16;         // for an element of any other operator
  int64_t elements = 0, terms = kOfElement;  // terms of the sum that makes an element
  ir::forEachResult(
      node, [&](ir::ValueId v) { elements = std::max(elements, graph.values[static_cast<size_t>(v)].type.numel()); });
  const CutList list(graph, node);
  if (node.op == "aten::mm" || node.op == "aten::bmm")
    terms = list.operand(0).sizes.back();
  else if (node.op == "aten::addmm" || node.op == "aten::baddbmm")
    terms = list.operand(1).sizes.back();
  else if (node.op == "aten::convolution")
    terms = list.operand(1).numel() / std::max<int64_t>(list.operand(1).sizes[0], 1);
  else if (node.op == "aten::convolution_backward")
    terms = list.operand(2).numel() / std::max<int64_t>(list.operand(2).sizes[1], 1);
  return elements * std::max(terms, kOfElement);
}

std::vector<int64_t> evenEnds(int64_t size, int64_t step, int64_t parts) {
  if (size / step < parts) step = 1;
  if (size < parts) return {};
  std::vector<int64_t> ends;
  const int64_t steps = size / step;
  for (int64_t i = 1; i < parts; ++i) ends.push_back(steps * i / parts * step);
  ends.push_back(size);
  return ends;
}

Type inMemoryOrder(const Type& type, int& dim) {
  const std::vector<size_t> order = memoryOrder(type);
  std::vector<int64_t> sizes;
  for (size_t d : order) sizes.push_back(type.sizes[d]);
  dim = static_cast<int>(std::find(order.begin(), order.end(), static_cast<size_t>(dim)) - order.begin());
  return contiguousType(type.dtype, std::move(sizes));
}

// In memory, the indices of the cut dimension repeat every `block` elements. A view is cut where its base is if these
// hold: one of its dimensions walks over exactly one block, faster dimensions stay within a step of that one, and
// slower dimensions move by whole blocks.
std::optional<ViewCut> cutOfView(const Type& base, int dim, const std::vector<int64_t>& ends, const ir::Value& view) {
  if (view.type.dtype != base.dtype || !isDense(base)) return std::nullopt;
  const int64_t fast = at(base.strides, dim), block = fast * at(base.sizes, dim);
  ViewCut found{.dim = kWhole};
  int64_t step = 0, reach = view.offset % block;
  for (size_t d = 0; d < view.type.sizes.size(); ++d) {
    const int64_t stride = view.type.strides[d];
    if (view.type.sizes[d] == 1 || stride % block == 0) continue;
    reach += (view.type.sizes[d] - 1) * stride;
    if (stride <= step) continue;
    step = stride;
    found.dim = static_cast<int>(d);
  }
  if (found.dim == kWhole) return std::nullopt;
  const int64_t size = at(view.type.sizes, found.dim);
  if (size * step != block || reach - (size - 1) * step >= step) return std::nullopt;
  for (int64_t end : ends) {
    if (end * fast % step != 0) return std::nullopt;
    found.ends.push_back(end * fast / step);
  }
  return found;
}

}  // namespace abele::passes
