// Private to pass shard: the possible cuts of operators, and the cuts of views that follow from a cut of their base.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "ir/graph.h"
#include "passes/dense_parts.h"

namespace abele::passes {

/// In place of a dimension: the whole tensor is used.
inline constexpr int kWhole = -1;

/// A way to divide an operator among devices. Each part makes a range of the results along one dimension.
struct Cut {
  std::vector<int> operands;  // by argument: the dimension along which its tensors are cut, or kWhole
  std::vector<int>
      results;       // by schema return: the dimension along which it is cut; kWhole: a separate node computes it
  int64_t size = 0;  // elements along that dimension
  int64_t step = 1;  // parts begin at multiples of it
  int32_t sizes_arg = ir::kNone;  // argument with the sizes of the first result
  int32_t mask_arg = ir::kNone;   // argument that selects the results to compute
};

/// The cuts of a node, in the order of the dimensions of its result. Empty for operators without a row in
/// shard_cuts.def.
std::vector<Cut> possibleCuts(const ir::Graph& graph, const ir::Node& node);

/// The stages of a graph that are not divided. A tensor of the program that micro-batches write has an order of reads
/// and writes, which one device keeps. If several nodes use such a tensor, their stages are not divided.
std::set<int32_t> stagesThatStayWhole(ir::Graph& graph);

/// An estimate of the multiplications and additions of a node.
int64_t workOf(const ir::Graph& graph, const ir::Node& node);

/// The ends of `parts` ranges over `size` elements, as equal as multiples of `step` allow. Empty if there are
/// fewer elements than parts.
std::vector<int64_t> evenEnds(int64_t size, int64_t step, int64_t parts);
/// The first element of a range, and its number of elements.
inline int64_t beginOf(const std::vector<int64_t>& ends, size_t part) { return part == 0 ? 0 : ends[part - 1]; }
inline int64_t lengthOf(const std::vector<int64_t>& ends, size_t part) { return ends[part] - beginOf(ends, part); }

/// A dense type with its dimensions in the order of memory, so that it is contiguous. dim: changed to its new place.
Type inMemoryOrder(const Type& type, int& dim);

/// How a cut of a dense base along `dim`, at `ends`, divides a view of it.
struct ViewCut {
  int dim = 0;
  std::vector<int64_t> ends = {};
};
/// Nothing if a part of the base does not hold a range of the view.
std::optional<ViewCut> cutOfView(const Type& base, int dim, const std::vector<int64_t>& ends, const ir::Value& view);

}  // namespace abele::passes
