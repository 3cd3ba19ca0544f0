#include "exe/build/shards.h"

#include <gtest/gtest.h>

#include "base/cat.h"

namespace abele::exe {
namespace {

// One worker's parameters with these numbers of elements, each with a state of the same size.
Executable programOf(const std::vector<int64_t>& elements) {
  Executable exe;
  exe.groups.push_back({.kind = GroupKind::kPersistent, .worker = 0});
  for (const ExternalKind kind : {ExternalKind::kParameter, ExternalKind::kState})
    for (size_t p = 0; p < elements.size(); ++p) {
      exe.slots.push_back({.group = 0, .type = contiguousType(DType::kFloat32, {elements[p]})});
      exe.externals.push_back({.name = cat("e", exe.externals.size()),
                               .kind = kind,
                               .slot = static_cast<int32_t>(exe.slots.size() - 1),
                               .owner = kind == ExternalKind::kState ? static_cast<int32_t>(p) : -1});
    }
  return exe;
}

using Table = std::vector<std::vector<int32_t>>;

TEST(Shards, DealTheLargestFirstAndStateWithItsParameter) {
  const Executable exe = programOf({1, 8, 5, 4, 2});
  const Table owner(10, {0, 0, 0});
  const Shards shards =
      chooseShards(exe, owner, {.weights = true, .states = true, .min_weight_elements = 0, .min_state_elements = 0});
  const std::vector<int32_t> holders = {1, 0, 1, 2, 2};  // 8; 5 + 1; 4 + 2 elements
  for (int32_t p = 0; p < 5; ++p) {
    const std::vector<int32_t> all(3, holders[p]);
    EXPECT_EQ(shards.holder[p], all) << p;
    EXPECT_EQ(shards.holder[5 + p], all) << p;
    EXPECT_EQ(shards.updater[p], all) << p;
  }
}

TEST(Shards, SmallTensorsStayAndCountForTheFirst) {
  const Executable exe = programOf({8, 4, 4, 3});
  const Table owner(8, {0, 0});
  const Shards shards = chooseShards(exe, owner, {.weights = false, .states = true, .min_state_elements = 4});
  const std::vector<int32_t> holders = {1, 0, 0, 0};  // 3 stay: 8 to the other, then 4 and 4
  for (int32_t p = 0; p < 4; ++p) {
    EXPECT_EQ(shards.holder[p], owner[p]);  // weights are not dealt
    EXPECT_EQ(shards.holder[4 + p], std::vector<int32_t>(2, holders[p])) << p;
    EXPECT_EQ(shards.updater[p], std::vector<int32_t>(2, holders[p])) << p;
  }
}

TEST(Shards, GroupsOfReplicasDealAmongThemselves) {
  const Executable exe = programOf({8, 8});
  const Table owner = {{0, 0, 2, 2}, {0, 0, 0, 0}, {0, 0, 2, 2}, {0, 0, 0, 0}};
  const Shards shards = chooseShards(exe, owner, {.weights = true, .min_weight_elements = 8});
  EXPECT_EQ(shards.holder[0], (std::vector<int32_t>{0, 0, 2, 2}));
  EXPECT_EQ(shards.holder[1], (std::vector<int32_t>{1, 1, 1, 1}));
  EXPECT_EQ(shards.holder[2], owner[2]);  // its state is not dealt
}

}  // namespace
}  // namespace abele::exe
