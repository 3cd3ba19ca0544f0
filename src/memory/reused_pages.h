// Memory for the capture of a model; devices reuse its pages afterwards. Used by steering_allocator.cc, Session and the
// CPU's devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include <c10/core/Allocator.h>

namespace abele::memory {

struct ReusedPool;

/// Allocates the large tensors that a thread makes in a FromReusedPages scope. When they die, devices made in an
/// IntoReusedPages scope get their pages, and leave them to the next devices. This saves time, because the system fills
/// each new page with zeros, and a virtual machine may have to get it from its host first, which takes several times as
/// long as a copy into it. Threads: owner only; tensors may die on any thread, and may outlive it.
class ReusedPages {
 public:
  static constexpr std::size_t kSmallest = std::size_t{256} << 10;
  static constexpr int64_t kPage = int64_t{2} << 20;

  /// keeps: pages of dead tensors stay for the devices. Otherwise they return to the system when the tensor dies.
  explicit ReusedPages(bool keeps);
  /// Returns memory that no tensor uses to the system, now and whenever another tensor dies.
  ~ReusedPages();
  ReusedPages(const ReusedPages&) = delete;
  ReusedPages& operator=(const ReusedPages&) = delete;

  /// Returns nothing if the system has no room.
  c10::DataPtr allocate(std::size_t bytes);
  /// Call before all of [begin, end) is written. Looks at the pages of this range inside [first, last) that were never
  /// announced before, and replaces them by unused pages of dead tensors as long as there are any. Bytes outside
  /// [begin, end) stay zero. Requires: private anonymous memory; all earlier writes there were announced; first is a
  /// multiple of kPage. Throws E0603 if the system can neither move pages nor map others.
  void expectWrite(char* begin, char* end, char* first, char* last);
  /// The same for memory that a program will write later: the pages inside [begin, end) that get others are zero.
  void fill(char* begin, char* end);
  /// From now on the system fetches missing pages in fill(), when the unused ones are used up.
  void fetchMissing() { fetches_missing_ = true; }
  /// Takes over the memory of a device that is gone, and returns it to the system in the end. [begin, end) is private
  /// anonymous memory, mapped at once; pages in it may have come from here.
  void adopt(char* begin, char* end);
  /// Returns unused pages to the system.
  void drop();

 private:
  /// Replaces the pages mapped from `begin` on by unused pages. Returns the number of bytes that got one; their
  /// contents are undefined.
  int64_t moveTo(char* begin, int64_t bytes);
  /// Replaces pages of [begin, end), multiples of kPage, that were never announced. replaced: told of each range of
  /// them that got others.
  void replace(char* begin, char* end, const std::function<void(char* begin, char* end)>& replaced);

  std::shared_ptr<ReusedPool> pool_;  // shared with the tensors
  std::set<char*> written_;           // pages that were announced to expectWrite() and fill()
  std::map<char*, char*> moved_;      // begin -> end of pages that were moved at once: each is a mapping of its own
  bool fetches_missing_ = false;
};

/// Frees memory of a ReusedPages. Returns false for other memory.
bool freeReused(void* begin);

/// While alive, large tensors that this thread makes come from `pages`, which must live as long as the scope.
class FromReusedPages {
 public:
  explicit FromReusedPages(ReusedPages& pages);
  ~FromReusedPages();
  FromReusedPages(const FromReusedPages&) = delete;
  FromReusedPages& operator=(const FromReusedPages&) = delete;

 private:
  ReusedPages* outer_;
};

/// While alive, devices that this thread makes, and to which it uploads, reuse `pages`, and devices that it destroys
/// give theirs back. `pages` must live as long as the scope.
class IntoReusedPages {
 public:
  explicit IntoReusedPages(ReusedPages& pages);
  ~IntoReusedPages();
  IntoReusedPages(const IntoReusedPages&) = delete;
  IntoReusedPages& operator=(const IntoReusedPages&) = delete;
  /// Null without a scope on this thread.
  static ReusedPages* pages();

 private:
  ReusedPages* outer_;
};

}  // namespace abele::memory
