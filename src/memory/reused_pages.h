// Memory for the capture of a model, whose pages devices take over later. Used by steering_allocator.cc, Session and
// the CPU's devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include <c10/core/Allocator.h>

namespace abele::memory {

struct ReusedPool;

/// Large tensors that its thread makes while it is in use come from here (FromReusedPages). When they die, their pages
/// become memory of devices (IntoReusedPages). That saves time: the system fills each new page with zeros, and a
/// virtual machine may have to get it from its host first, which takes several times as long as a copy into it.
/// Threads: owner only; tensors may die on any thread, and may outlive it.
class ReusedPages {
 public:
  static constexpr std::size_t kSmallest = std::size_t{256} << 10;
  static constexpr int64_t kPage = int64_t{2} << 20;

  /// keeps: pages of dead tensors stay for the devices. Otherwise they return to the system when the tensor dies.
  explicit ReusedPages(bool keeps);
  /// Memory that no tensor uses returns to the system, now and whenever another tensor dies.
  ~ReusedPages();
  ReusedPages(const ReusedPages&) = delete;
  ReusedPages& operator=(const ReusedPages&) = delete;

  /// Returns nothing if the system has no room.
  c10::DataPtr allocate(std::size_t bytes);
  /// Announces that all of [begin, end) will be written next. Of the pages inside [first, last) that this range
  /// touches, those that were never announced before are replaced by unused pages of dead tensors, as long as these
  /// last. Bytes outside [begin, end) stay zero. Requires: private anonymous memory; all earlier writes there were
  /// announced; first is a multiple of kPage. Throws E0603 if the system can neither move pages nor map others.
  void expectWrite(char* begin, char* end, char* first, char* last);

 private:
  /// Replaces the pages mapped from `begin` on by unused pages. Returns the number of bytes that got one; their
  /// contents are undefined.
  int64_t moveTo(char* begin, int64_t bytes);

  std::shared_ptr<ReusedPool> pool_;  // shared with the tensors
  std::set<char*> written_;           // pages that were announced to expectWrite()
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

/// While alive, devices that this thread makes and uploads to take over `pages`, which must live as long as the scope.
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
