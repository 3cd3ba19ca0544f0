// Memory that a model is captured in, and that devices take over page by page. Used by steering_allocator.cc, Session
// and the CPU's devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include <c10/core/Allocator.h>

namespace abele::runtime {

struct ReusedPool;

/// Large tensors that its thread makes while it is in use come from here (FromReusedPages), and what they leave becomes
/// memory of devices (IntoReusedPages): the system fills each new page with zeros, and a virtual machine may have to
/// get it from its host first, which takes several times as long as a copy into it. Threads: owner only; tensors may
/// die on any thread, and may outlive it.
class ReusedPages {
 public:
  static constexpr std::size_t kSmallest = std::size_t{256} << 10;
  static constexpr int64_t kPage = int64_t{2} << 20;

  ReusedPages();
  /// The system gets back what no tensor uses, now and when the others die.
  ~ReusedPages();
  ReusedPages(const ReusedPages&) = delete;
  ReusedPages& operator=(const ReusedPages&) = delete;

  /// Nothing when the system has no room.
  c10::DataPtr allocate(std::size_t bytes);
  /// [begin, end) is written next, all of it. Of the pages there that lie in [first, last), those that this is told of
  /// for the first time get pages that no tensor uses any more, as many as there are. What lies beside these bytes
  /// stays zero. Requires: private anonymous memory; nothing was written there before that this was not told of; first
  /// is a multiple of kPage. Throws E0603 when the system can neither move pages nor map others.
  void expectWrite(char* begin, char* end, char* first, char* last);

 private:
  /// Puts pages from `begin` on in place of what is mapped there. Returns how many bytes have one; they hold anything.
  int64_t moveTo(char* begin, int64_t bytes);

  std::shared_ptr<ReusedPool> pool_;  // shared with the tensors
  std::set<char*> written_;           // pages that expectWrite() was told of
};

/// Frees what ReusedPages gave. False: it is not of one.
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

/// While alive, devices that this thread makes and uploads to get pages of `pages`, which must live as long as the
/// scope.
class IntoReusedPages {
 public:
  explicit IntoReusedPages(ReusedPages& pages);
  ~IntoReusedPages();
  IntoReusedPages(const IntoReusedPages&) = delete;
  IntoReusedPages& operator=(const IntoReusedPages&) = delete;
  /// Null: there is no scope on this thread.
  static ReusedPages* pages();

 private:
  ReusedPages* outer_;
};

}  // namespace abele::runtime
