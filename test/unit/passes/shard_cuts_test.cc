// What a cut of a tensor means for its views: checked against every element.
#include "passes/shard_cuts.h"

#include <gtest/gtest.h>

#include <functional>

namespace abele::passes {
namespace {

// The places in memory of all elements of a tensor, in the order of its indices.
std::vector<int64_t> placesOf(const Type& type, int64_t offset) {
  std::vector<int64_t> places;
  std::function<void(size_t, int64_t)> walk = [&](size_t dim, int64_t place) {
    if (dim == type.sizes.size()) return places.push_back(place);
    for (int64_t i = 0; i < type.sizes[dim]; ++i) walk(dim + 1, place + i * type.strides[dim]);
  };
  walk(0, offset);
  return places;
}

Type range(Type type, int dim, int64_t length) {
  type.sizes[static_cast<size_t>(dim)] = length;
  return type;
}

// Cuts the base, and requires that every part of the view has the elements that the view has in that range. Returns the
// dimension along which the view is cut, or kWhole.
int cutAndCompare(const Type& base, int dim, const std::vector<int64_t>& ends, const Type& type, int64_t offset) {
  const ir::Value view{.type = type, .offset = offset};
  const std::optional<ViewCut> cut = cutOfView(base, dim, ends, view);
  if (!cut) return kWhole;
  EXPECT_EQ(cut->ends.size(), ends.size());
  const size_t d = static_cast<size_t>(cut->dim);
  EXPECT_EQ(cut->ends.back(), type.sizes[d]);
  for (size_t i = 0; i < ends.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : ends[i - 1], length = ends[i] - begin;
    const int64_t from = i == 0 ? 0 : cut->ends[i - 1], size = cut->ends[i] - from;
    const Type part = partType(base, dim, length);
    ir::Value place = viewInPart(base, dim, length, view);
    place.type.sizes[d] = size;
    // The place in the base of each element of the part.
    std::vector<int64_t> of_part(static_cast<size_t>(part.numel()));
    const std::vector<int64_t> there = placesOf(part, 0);
    const std::vector<int64_t> here =
        placesOf(range(base, dim, length), begin * base.strides[static_cast<size_t>(dim)]);
    for (size_t k = 0; k < there.size(); ++k) of_part[static_cast<size_t>(there[k])] = here[k];
    std::vector<int64_t> found;
    for (int64_t p : placesOf(place.type, place.offset)) found.push_back(of_part.at(static_cast<size_t>(p)));
    EXPECT_EQ(found, placesOf(range(type, cut->dim, size), offset + from * type.strides[d])) << type.str();
  }
  return cut->dim;
}

Type contiguous(std::vector<int64_t> sizes) { return contiguousType(DType::kFloat32, std::move(sizes)); }

TEST(CutOfView, RowsOfSamples) {
  const Type base = contiguous({4, 6, 10});
  EXPECT_EQ(cutAndCompare(base, 0, {1, 4}, contiguous({24, 10}), 0), 0);
  EXPECT_EQ(cutAndCompare(base, 0, {1, 4}, base, 0), 0);
  EXPECT_EQ(cutAndCompare(base, 0, {2, 4}, {DType::kFloat32, {10, 24}, {1, 10}}, 0), 1);  // transposed
  // A row has two samples, which belong to different parts.
  EXPECT_EQ(cutAndCompare(base, 0, {1, 4}, contiguous({2, 120}), 0), kWhole);
  EXPECT_EQ(cutAndCompare(base, 1, {2, 6}, contiguous({24, 10}), 0), kWhole);
}

TEST(CutOfView, QueriesOfHeads) {
  const int64_t batch = 4, length = 6, heads = 3, width = 5, all = 3 * heads * width;
  const Type base = contiguous({batch * length, all});
  const Type heads_first{DType::kFloat32, {batch, heads, length, width}, {length * all, width, all, 1}};
  for (int64_t which = 0; which < 3; ++which)
    EXPECT_EQ(cutAndCompare(base, 0, {2 * length, 4 * length}, heads_first, which * heads * width), 0);
  EXPECT_EQ(cutAndCompare(base, 0, {length + 1, 4 * length}, heads_first, 0), kWhole);
  // Columns are divided between queries, keys and values.
  EXPECT_EQ(cutAndCompare(base, 1, {all / 3, all}, heads_first, 0), kWhole);
}

TEST(CutOfView, HeadsOfColumns) {
  const Type base = contiguous({24, 15});
  const Type heads{DType::kFloat32, {4, 3, 6, 5}, {90, 5, 15, 1}};
  EXPECT_EQ(cutAndCompare(base, 1, {5, 15}, heads, 0), 1);
  EXPECT_EQ(cutAndCompare(base, 1, {7, 15}, heads, 0), kWhole);
  EXPECT_EQ(cutAndCompare(base, 1, {7, 15}, contiguous({4, 6, 15}), 0), 2);
}

TEST(CutOfView, OtherOrdersOfMemory) {
  const Type base{DType::kFloat32, {2, 4, 6, 5}, {120, 5, 20, 1}};  // heads inside of rows
  EXPECT_EQ(cutAndCompare(base, 1, {1, 4}, {DType::kFloat32, {12, 20}, {20, 1}}, 0), 1);
  EXPECT_EQ(cutAndCompare(base, 1, {1, 4}, {DType::kFloat32, {2, 6, 4, 5}, {120, 20, 5, 1}}, 0), 2);
  EXPECT_EQ(cutAndCompare(base, 0, {1, 2}, {DType::kFloat32, {12, 20}, {20, 1}}, 0), 0);
}

TEST(CutOfView, SlicesAndExpansions) {
  const Type base = contiguous({8, 10});
  EXPECT_EQ(cutAndCompare(base, 0, {3, 8}, {DType::kFloat32, {8, 4}, {10, 1}}, 6), 0);        // columns of all rows
  EXPECT_EQ(cutAndCompare(base, 0, {3, 8}, {DType::kFloat32, {4, 10}, {10, 1}}, 0), kWhole);  // some rows
  EXPECT_EQ(cutAndCompare(base, 0, {3, 8}, {DType::kFloat32, {2, 8, 10}, {0, 10, 1}}, 0), 1);
  EXPECT_EQ(cutAndCompare(base, 0, {3, 8}, {DType::kFloat32, {10}, {1}}, 20), kWhole);  // one row
}

TEST(EvenEnds, AreMultiplesOfTheStepIfThereAreEnough) {
  EXPECT_EQ(evenEnds(64, 16, 2), (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(evenEnds(100, 16, 3), (std::vector<int64_t>{32, 64, 100}));
  EXPECT_EQ(evenEnds(5, 16, 2), (std::vector<int64_t>{2, 5}));
  EXPECT_TRUE(evenEnds(1, 1, 2).empty());
}

}  // namespace
}  // namespace abele::passes
