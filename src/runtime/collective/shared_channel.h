// Messages from one process to another on the same host, through memory that both have: no sockets, no copies by the
// kernel. The memory has no name: it ends with the processes, whatever becomes of them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace abele::runtime {

/// One direction. Threads: one sends in one process, one receives in the other; close() from any.
class SharedChannel {
 public:
  /// What the sender tells the receiver, over another connection, so that it finds the memory.
  static constexpr size_t kOfferBytes = 64;

  /// The sender's end. Null where this system has no such memory.
  static std::unique_ptr<SharedChannel> make(size_t ring_bytes);
  std::string offer() const;
  /// The receiver's end; null where the sender is not on this host, or its memory cannot be reached.
  static std::unique_ptr<SharedChannel> open(const std::string& offer);
  ~SharedChannel();
  SharedChannel(const SharedChannel&) = delete;
  SharedChannel& operator=(const SharedChannel&) = delete;

  /// Whom the other end belongs to: its process is watched. offer: of the receiver itself, by identify().
  static std::string identify();
  bool watch(const std::string& identity);

  enum class Outcome : uint8_t { kDone, kStopped, kLost };
  /// Copies bytes into the memory, or out of it. stops: asked every few milliseconds of a wait. kLost: the other
  /// process has ended, or closed its end.
  Outcome send(const void* bytes, size_t count, const std::function<bool()>& stops);
  Outcome receive(void* bytes, size_t count, const std::function<bool()>& stops);
  /// The other side hears kLost.
  void close();

 private:
  struct Side;
  struct Header;
  SharedChannel() = default;
  bool map(int file, size_t bytes);
  using Clock = std::chrono::steady_clock;
  /// has_begun: another part of the message has gone through.
  Outcome waitFor(const std::function<bool()>& is_over, bool has_begun, Side& other,
                  const std::function<bool()>& stops);
  static bool looksFor(const std::function<bool()>& is_over, Clock::time_point end, const Side& other);
  Outcome sleepUntil(const std::function<bool()>& is_over, Side& other, const std::function<bool()>& stops) const;
  bool otherHasEnded() const;

  Header* header_ = nullptr;
  char* ring_ = nullptr;
  size_t ring_bytes_ = 0, mapped_bytes_ = 0;
  int late_messages_ = 0;       // the last ones, in a row
  int file_ = -1, other_ = -1;  // the memory, of the sender until it is mapped; the other process
};

}  // namespace abele::runtime
