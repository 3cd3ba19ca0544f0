// Messages between two processes of one host through shared memory, without sockets and without copies by the kernel.
// The memory has no name, so it is freed when the processes end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace abele::collective {

/// A channel in one direction. Threads: one thread sends in one process, one receives in the other; close() from any.
class SharedChannel {
 public:
  /// Bytes of the text that the sender sends over another connection, by which the receiver finds the memory.
  static constexpr size_t kOfferBytes = 64;

  /// Makes the sender's end. Null if this system has no memory without a name.
  static std::unique_ptr<SharedChannel> make(size_t ring_bytes);
  std::string offer() const;
  /// Opens the receiver's end. Null if the sender is not on this host, or if its memory cannot be reached.
  static std::unique_ptr<SharedChannel> open(const std::string& offer);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  /// Watches the process at the other end. The receiver identifies itself by the text of identify().
  static std::string identify();
  bool watch(const std::string& identity);

  enum class Outcome : uint8_t { kDone, kStopped, kLost };
  /// Copies bytes into the memory, or out of it. stops: called every few milliseconds while waiting. kLost: the other
  /// process has ended, or has closed its end.
  Outcome send(const void* bytes, size_t count, const std::function<bool()>& stops);
  Outcome receive(void* bytes, size_t count, const std::function<bool()>& stops);
  /// Closes this end. The other end gets kLost.
  void close();

 private:
  struct Side;
  struct Header;
  SharedChannel() = default;
  bool map(int file, size_t bytes);
  using Clock = std::chrono::steady_clock;
  /// has_begun: a part of the message has already been copied.
  Outcome waitFor(const std::function<bool()>& is_over, bool has_begun, Side& other,
                  const std::function<bool()>& stops);
  static bool looksFor(const std::function<bool()>& is_over, Clock::time_point end, const Side& other);
  Outcome sleepUntil(const std::function<bool()>& is_over, Side& other, const std::function<bool()>& stops) const;
  bool otherHasEnded() const;

  Header* header_ = nullptr;
  char* ring_ = nullptr;
  size_t ring_bytes_ = 0, mapped_bytes_ = 0;
  int late_messages_ = 0;       // number of consecutive late messages up to now
  int file_ = -1, other_ = -1;  // the memory, which the sender keeps open until the receiver has mapped it; the other
                                // process
};

}  // namespace abele::collective
