// Memory of a capture that becomes memory of devices.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "harness.h"
#include "memory/reused_pages.h"
#include "memory/steering_allocator.h"

namespace abele::device::testing {
namespace {

constexpr int64_t kPage = memory::ReusedPages::kPage;

/// Fresh zeros at a multiple of kPage.
class Zeros {
 public:
  explicit Zeros(int64_t bytes) : bytes_(bytes + kPage) {
    mapped_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    begin = reinterpret_cast<char*>((address + kPage - 1) / kPage * kPage);
    end = begin + bytes;
  }
  ~Zeros() {
    if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  void give(memory::ReusedPages& pages) {
    char* const from = static_cast<char*>(std::exchange(mapped_, nullptr));
    pages.adopt(from, from + bytes_);
  }

  char *begin, *end;

 private:
  size_t bytes_;
  void* mapped_;
};

bool isAll(const char* begin, const char* end, char value) {
  return std::all_of(begin, end, [&](char c) { return c == value; });
}

bool isResident(const void* page) {
  unsigned char resident = 0;
  EXPECT_EQ(::mincore(const_cast<void*>(page), 1, &resident), 0);
  return resident & 1;
}

at::Tensor bytesOf(memory::ReusedPages& pages, int64_t bytes, char value) {
  const memory::FromReusedPages scope(pages);
  return at::full({bytes}, value, at::kChar);
}

TEST(ReusedPages, WhatLiesBesideAnExpectedWriteStaysZero) {
  memory::ReusedPages pages(true);
  bytesOf(pages, 8 * kPage, 7).reset();
  const Zeros memory(6 * kPage);
  char* const first = memory.begin + 1000;
  char* const second = memory.begin + 3 * kPage - 100;
  pages.expectWrite(first, second, memory.begin, memory.end);
  EXPECT_TRUE(isAll(second - kPage, second, 7));  // a page that was the tensor's
  EXPECT_TRUE(isAll(memory.begin, first, 0) && isAll(second, memory.end, 0));
  std::memset(first, 1, static_cast<size_t>(second - first));
  // The next one begins in the page where that one ends.
  char* const third = memory.begin + 4 * kPage + 5;
  pages.expectWrite(second, third, memory.begin, memory.end);
  EXPECT_TRUE(isAll(first, second, 1));
  EXPECT_TRUE(isAll(memory.begin, first, 0) && isAll(third, memory.end, 0));
}

TEST(ReusedPages, PagesThatEndBehindTheMemoryStay) {
  memory::ReusedPages pages(true);
  bytesOf(pages, 8 * kPage, 7).reset();
  const Zeros memory(3 * kPage);
  char* const last = memory.begin + kPage + 64;
  pages.expectWrite(memory.begin, last, memory.begin, last);
  EXPECT_TRUE(isAll(memory.begin, memory.begin + kPage, 7));
  EXPECT_TRUE(isAll(memory.begin + kPage, memory.end, 0));
}

TEST(ReusedPages, TensorsThatLiveKeepTheirContents) {
  at::Tensor outlives;
  const Zeros memory(16 * kPage);
  {
    memory::ReusedPages pages(true);
    at::Tensor before = bytesOf(pages, kPage + 1, 3), between = bytesOf(pages, 3 * kPage, 4);
    outlives = bytesOf(pages, kPage / 2, 5);
    before.reset();
    between.reset();
    pages.expectWrite(memory.begin, memory.end, memory.begin, memory.end);
    std::memset(memory.begin, 9, static_cast<size_t>(memory.end - memory.begin));
    EXPECT_TRUE(outlives.eq(5).all().item<bool>());
    before = bytesOf(pages, 2 * kPage, 6);  // takes the remaining pages and more
    EXPECT_TRUE(before.eq(6).all().item<bool>());
  }
  EXPECT_TRUE(outlives.eq(5).all().item<bool>());
  EXPECT_TRUE(isAll(memory.begin, memory.end, 9));
  void* const address = outlives.mutable_data_ptr();
  outlives.reset();
  EXPECT_FALSE(memory::freeReused(address));
}

TEST(ReusedPages, WhereNoneAreKeptTheyReturnToTheSystemAtOnce) {
  memory::ReusedPages pages(false);
  at::Tensor dies = bytesOf(pages, 2 * kPage, 3);
  const at::Tensor stays = bytesOf(pages, 2 * kPage, 4);
  const void* const page = dies.const_data_ptr();
  EXPECT_TRUE(isResident(page));
  dies.reset();
  EXPECT_FALSE(isResident(page));
  EXPECT_TRUE(isResident(stays.const_data_ptr()) && stays.eq(4).all().item<bool>());
}

TEST(ReusedPages, SmallTensorsAndThoseOfOtherTimesAreTorchs) {
  memory::ReusedPages pages(true);
  EXPECT_FALSE(memory::freeReused(bytesOf(pages, 64, 1).mutable_data_ptr()));
  EXPECT_FALSE(memory::freeReused(at::empty({kPage}, at::kChar).mutable_data_ptr()));
}

int64_t residentPages(const Zeros& memory) {
  int64_t count = 0;
  for (const char* page = memory.begin; page < memory.end; page += kPage) count += isResident(page) ? 1 : 0;
  return count;
}

TEST(ReusedPages, WholePagesOfMemoryThatIsWrittenLaterAreZeros) {
  memory::ReusedPages pages(true);
  bytesOf(pages, 8 * kPage, 7).reset();
  const Zeros memory(6 * kPage);
  pages.fill(memory.begin + 1, memory.end - 1);
  EXPECT_EQ(residentPages(memory), 4);
  EXPECT_FALSE(isResident(memory.begin) || isResident(memory.end - kPage));
  EXPECT_TRUE(isAll(memory.begin, memory.end, 0));
}

TEST(ReusedPages, MissingPagesAreFetchedOnRequestOnly) {
  memory::ReusedPages pages(true);
  bytesOf(pages, 2 * kPage, 7).reset();
  const Zeros memory(6 * kPage), other(6 * kPage);
  pages.fill(memory.begin, memory.end);
  EXPECT_EQ(residentPages(memory), 2);
  pages.fetchMissing();
  pages.fill(other.begin, other.end);
  EXPECT_EQ(residentPages(other), 6);
  EXPECT_TRUE(isAll(other.begin, other.end, 0));
}

TEST(ReusedPages, PagesGoFromOneDeviceToTheNext) {
  memory::ReusedPages pages(true);
  at::Tensor before = bytesOf(pages, 2 * kPage, 7), stays = bytesOf(pages, kPage, 8);
  bytesOf(pages, 2 * kPage, 9).reset();
  before.reset();
  Zeros first(7 * kPage), second(7 * kPage);
  std::memset(first.begin, 1, static_cast<size_t>(first.end - first.begin));
  pages.fill(second.begin, second.end);  // pages of several tensors
  EXPECT_EQ(residentPages(second), 4);
  std::memset(second.begin, 2, static_cast<size_t>(second.end - second.begin));
  first.give(pages);
  second.give(pages);
  Zeros third(14 * kPage);
  pages.fill(third.begin, third.end);
  EXPECT_EQ(residentPages(third), 14);
  EXPECT_TRUE(isAll(third.begin, third.end, 0));
  EXPECT_TRUE(stays.eq(8).all().item<bool>());
  third.give(pages);
  pages.drop();
  const Zeros fourth(2 * kPage);
  pages.fill(fourth.begin, fourth.end);
  EXPECT_EQ(residentPages(fourth), 0);
}

TEST(ReusedPages, ADeviceWorksInThePagesOfTheOneBefore) {
  Program p;
  const int64_t elements = 4 * kPage;
  p.external(f32({elements}), exe::ExternalKind::kParameter);
  p.external(f32({elements}), exe::ExternalKind::kState);
  memory::ReusedPages pages(true);
  const memory::IntoReusedPages scope(pages);
  const at::Tensor weights = at::full({elements}, 2.5);
  for (const int64_t least : {int64_t{0}, 14 * kPage}) {
    const auto backend = CpuBackend::create(p.executable, {});
    EXPECT_GE(backend->residentBytes(0), least);
    EXPECT_TRUE(sameBits(backend->value(0), at::zeros({elements})));
    EXPECT_TRUE(sameBits(backend->value(1), at::zeros({elements})));
    backend->upload(0, weights);
    backend->upload(1, weights);
    EXPECT_TRUE(sameBits(backend->value(0), weights) && sameBits(backend->value(1), weights));
  }
}

TEST(ReusedPages, StateBeginsWithItsValueInMemoryOfAnySize) {
  memory::ReusedPages pages(true);
  const memory::IntoReusedPages scope(pages);
  std::deque<Program> programs;
  std::vector<decltype(CpuBackend::create(programs[0].executable, {}))> backends;  // so that the next is elsewhere
  for (const int64_t tenths : {19, 19, 19, 19, 21, 35, 7, 13}) {
    bytesOf(pages, 8 * kPage, 7).reset();
    const int64_t elements = kPage / 40 * tenths;
    programs.emplace_back().external(f32({elements}), exe::ExternalKind::kState, 0.5);
    backends.push_back(CpuBackend::create(programs.back().executable, {}));
    EXPECT_TRUE(sameBits(backends.back()->value(0), at::full({elements}, 0.5)));
  }
}

TEST(ReusedPages, UploadsAreRightAndTheRestOfTheMemoryIsZero) {
  Program p;
  const int64_t elements = kPage * 3 / 8;
  p.external(f32({elements}), exe::ExternalKind::kParameter);
  p.external(f32({elements}), exe::ExternalKind::kAccumulator);
  p.external(f32({elements}), exe::ExternalKind::kState, 0.5);
  p.external(f32({elements}), exe::ExternalKind::kParameter);
  memory::ReusedPages pages(true);
  bytesOf(pages, 16 * kPage, 7).reset();
  const memory::IntoReusedPages scope(pages);
  const auto backend = CpuBackend::create(p.executable, {});
  const at::Tensor weights = at::full({elements}, 2.5);
  backend->upload(3, weights);
  EXPECT_TRUE(sameBits(backend->value(0), at::zeros({elements})));
  EXPECT_TRUE(sameBits(backend->value(1), at::zeros({elements})));
  EXPECT_TRUE(sameBits(backend->value(2), at::full({elements}, 0.5)));
  EXPECT_TRUE(sameBits(backend->value(3), weights));
  backend->upload(0, weights);
  EXPECT_TRUE(sameBits(backend->value(0), weights));
  EXPECT_TRUE(sameBits(backend->value(1), at::zeros({elements})));
  EXPECT_TRUE(sameBits(backend->value(3), weights));
}

}  // namespace
}  // namespace abele::device::testing
