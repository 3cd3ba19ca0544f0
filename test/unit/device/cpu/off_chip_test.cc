// Off-chip groups of the CPU backend: which of them are in a file, how much of it is in memory, and failures.
#include <fstream>
#include <sstream>

#include "device/aten/arena.h"
#include "harness.h"
#include "memory/offload.h"
#include "memory/paged_memory.h"
#include "memory/steering_allocator.h"

namespace abele::device::testing {
namespace {

// Resident bytes of the mapping that holds an address.
int64_t residentBytes(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  bool is_mapping = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-') is_mapping = begin <= at && at < end;
    int64_t kilobytes = 0;
    if (is_mapping && line.starts_with("Rss:") && std::istringstream(line.substr(4)) >> kilobytes)
      return kilobytes * 1024;
  }
  return -1;
}

constexpr int64_t kElements = 64 << 10;  // 256 KiB

struct OffChip : ::testing::Test {
  Program p;
  int32_t often, seldom;

  OffChip() {
    often = p.group(exe::GroupKind::kPersistent, 1, "often");
    seldom = p.group(exe::GroupKind::kPersistent, 1, "seldom");
    for (int32_t group : {often, seldom}) {
      p.executable.groups[group].off_chip = true;
      p.executable.externals.push_back(
          {p.executable.groups[group].name, exe::ExternalKind::kParameter, p.slot(group, f32({kElements})), -1, 0});
    }
    auto& actions = p.executable.workers[0].actions;
    for (exe::Action& action : actions) action.fetches.push_back({often, 0, false});
    actions.back().fetches.push_back({seldom, 0, false});
  }

  std::unique_ptr<CpuBackend> create(int64_t limit, std::string folder = "") {
    DeviceOptions options;
    options.off_chip_memory_limit = limit;
    options.off_chip_folder = std::move(folder);
    return CpuBackend::create(p.executable, options);
  }
};

TEST_F(OffChip, HostMemoryHasWhatMovesMostOftenUpToTheLimit) {
  const int64_t bytes = 4 * kElements;
  EXPECT_EQ(create(-1)->fileBytes(), 0);
  EXPECT_FALSE(create(-1)->movesOffChipMemory());
  EXPECT_EQ(create(2 * bytes)->fileBytes(), 0);
  EXPECT_EQ(create(0)->fileBytes(), 2 * bytes);
  const auto half = create(bytes);
  EXPECT_EQ(half->fileBytes(), bytes);
  EXPECT_TRUE(half->movesOffChipMemory());
  EXPECT_EQ(half->allocatedBytes(0), exe::residentBytes(p.executable, 0));
  const at::Tensor in_file = half->external(1);
  const at::Tensor in_memory = half->external(0);
  half->fetch({seldom, 0, true});
  half->fetch({often, 0, true});
  EXPECT_EQ(residentBytes(in_file.data_ptr()), bytes);
  in_memory.fill_(3);
  half->release({often, 0, true});  // stays in memory, because it is not in the file
  EXPECT_TRUE(in_memory.eq(3).all().item<bool>());
}

TEST_F(OffChip, MemoryComesAndGoesAndKeepsItsContents) {
  const auto backend = create(0);
  const at::Tensor values = at::randn({kElements});
  backend->upload(0, values);
  at::Tensor inside = backend->external(0);
  EXPECT_EQ(residentBytes(inside.data_ptr()), 0);  // an upload leaves nothing behind
  for (const bool writes : {false, true}) {
    backend->fetch({often, 0, writes});
    EXPECT_EQ(residentBytes(inside.data_ptr()), 4 * kElements);
    EXPECT_TRUE(inside.equal(values));
    backend->release({often, 0, writes});
    EXPECT_EQ(residentBytes(inside.data_ptr()), 0);
  }
  inside.add_(1);
  backend->releaseAll();
  at::Tensor copy = at::empty({kElements});
  backend->download(0, copy);
  EXPECT_TRUE(copy.equal(values + 1));
  EXPECT_EQ(residentBytes(inside.data_ptr()), 0);
}

TEST_F(OffChip, ASharedTensorOutlivesTheBackend) {
  at::Tensor inside;
  {
    const auto backend = create(0);
    inside = backend->external(1);
    inside.fill_(7);
  }
  EXPECT_TRUE(inside.eq(7).all().item<bool>());
}

TEST_F(OffChip, AFolderThatIsNoneIsRefused) {
  try {
    create(0, "/proc/no-such-folder");
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(errorCodeText(error.code()), "E0605");
    EXPECT_NE(std::string(error.what()).find("offChipFolder"), std::string::npos) << error.what();
  }
}

TEST(Offload, TensorsStayWhatTheyAreAndTakeNoMemory) {
  const at::Tensor values = at::randn({4, kElements / 4});
  at::Tensor weight = values.clone(), row = weight[2], tied = weight;
  weight.requires_grad_(true);
  const at::Tensor empty = at::empty({0});
  memory::offload({weight, tied, row, empty}, "");
  EXPECT_EQ(residentBytes(weight.data_ptr()), 0);
  EXPECT_TRUE(weight.equal(values) && row.equal(values[2]));
  EXPECT_TRUE(row.is_alias_of(weight) && weight.requires_grad());
  EXPECT_EQ(residentBytes(weight.data_ptr()), 4 * kElements);
  memory::releaseIfOffloaded(row);
  EXPECT_EQ(residentBytes(weight.data_ptr()), 0);
  row.detach().fill_(1);
  memory::offload({weight}, "");  // already there
  EXPECT_TRUE(weight[2].eq(1).all().item<bool>() && weight[1].equal(values[1]));
  memory::releaseIfOffloaded(values);  // nothing happens to others
  EXPECT_TRUE(weight[1].equal(values[1]));
}

TEST(PagedMemory, LargeTensorsLeaveTheProcessAndComeBack) {
  at::Tensor outlives;
  {
    memory::PagedMemory memory("");
    const memory::PagedScope scope(memory);
    const at::Tensor large = at::ones({kElements}), small = at::ones({8});
    EXPECT_EQ(residentBytes(large.data_ptr()), 4 * kElements);
    memory.release();
    EXPECT_EQ(residentBytes(large.data_ptr()), 0);
    EXPECT_EQ(large.sum().item<float>(), kElements);
    EXPECT_EQ(residentBytes(large.data_ptr()), 4 * kElements);
    EXPECT_FALSE(memory::freePaged(small.mutable_data_ptr()));
    outlives = large + 1;
    memory.release();
  }
  EXPECT_EQ(outlives.sum().item<float>(), 2 * kElements);
  const void* const address = outlives.const_data_ptr();
  outlives.reset();
  EXPECT_EQ(residentBytes(address), -1);
}

TEST(PagedMemory, RefusesAFolderThatIsNot) {
  try {
    memory::PagedMemory memory("/no/such/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0605);
  }
}

}  // namespace
}  // namespace abele::device::testing
