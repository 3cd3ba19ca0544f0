#include "collective/shared_channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "collective/announcement.h"

namespace abele::collective {
namespace {

// A sleeping core takes tens of microseconds to wake up. So a side first spins for this long, and sleeps then. If
// several messages in a row begin much later, it goes to sleep at once, until a message is in time again.
constexpr auto kPatience = std::chrono::microseconds(50), kLittlePatience = std::chrono::microseconds(1);
constexpr auto kLate = 2 * kPatience;
constexpr int kLateMessages = 3;
constexpr int kLooks = 16;                                     // between two looks at the clock: about a microsecond
constexpr auto kInterruption = std::chrono::microseconds(20);  // a longer gap: another thread had the core

constexpr size_t kHeaderBytes = 4096;
constexpr long kSleepNs = 10'000'000;    // between checks that the other process still exists
constexpr size_t kChunkBytes = 1 << 15;  // after each chunk the other side may continue

/// Identifies this boot of this machine, and the processes that see each other's process ids.
std::string hostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  const std::string whole = boot + std::string(space.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return cat(hashOf(whole.data(), whole.size()));
}

/// Reads "HOST PID START FILE BYTES". START tells a process from a later one with the same id.
struct Identity {
  std::string host;
  long pid = 0, start = 0;
  int file = -1;
  size_t bytes = 0;

  std::string text() const {
    std::string words = cat(host, " ", pid, " ", start, " ", file, " ", bytes);
    ABELE_CHECK(words.size() < SharedChannel::kOfferBytes, words);
    words.resize(SharedChannel::kOfferBytes, ' ');
    return words;
  }
  static Identity parse(const std::string& text) {
    Identity read;
    std::array<char, 40> host{};
    if (std::sscanf(text.c_str(), "%39s %ld %ld %d %zu", host.data(), &read.pid, &read.start, &read.file,
                    &read.bytes) != 5)
      return {};
    read.host = host.data();
    return read;
  }
};

long startOf(long pid) {
  std::ifstream file(cat("/proc/", pid, "/stat"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name = text.rfind(')');
  if (name == std::string::npos) return -1;
  long start = -1;
  std::sscanf(text.c_str() + name + 1,
              " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %ld", &start);
  return start;
}

Identity own() { return {.host = hostIdentity(), .pid = ::getpid(), .start = startOf(::getpid())}; }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleepOn(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit{0, kSleepNs};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

// The state that one side shows to the other.
struct SharedChannel::Side {
  alignas(64) std::atomic<uint64_t> bytes;  // bytes written, or bytes read
  std::atomic<uint32_t> rings;              // changes after `bytes` does; the other side sleeps on it
  std::atomic<uint32_t> is_awaited;         // nonzero while the other side sleeps
  std::atomic<int32_t> core;                // the core that this side used last

  void moveTo(uint64_t count) {
    bytes.store(count);
    rings.fetch_add(1);
    if (is_awaited.load() != 0) wake(rings);
  }
};

struct SharedChannel::Header {
  Side writer, reader;
  alignas(64) std::atomic<uint32_t> closed;
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
};

bool SharedChannel::map(int file, size_t bytes) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return false;
  header_ = static_cast<Header*>(memory);
  ring_ = static_cast<char*>(memory) + kHeaderBytes;
  mapped_bytes_ = bytes;
  ring_bytes_ = bytes - kHeaderBytes;
  return true;
}

std::unique_ptr<SharedChannel> SharedChannel::make(size_t ring_bytes) {
  std::unique_ptr<SharedChannel> channel(new SharedChannel);
  channel->file_ = ::memfd_create("abele", MFD_CLOEXEC);  // its zeros are a channel without messages
  const size_t bytes = kHeaderBytes + ring_bytes;
  if (channel->file_ < 0 || ::ftruncate(channel->file_, static_cast<off_t>(bytes)) != 0) return nullptr;
  return channel->map(channel->file_, bytes) ? std::move(channel) : nullptr;
}

std::string SharedChannel::offer() const {
  Identity mine = own();
  mine.file = file_;
  mine.bytes = mapped_bytes_;
  return mine.text();
}

std::string SharedChannel::identify() { return own().text(); }

std::unique_ptr<SharedChannel> SharedChannel::open(const std::string& offer) {
  const Identity theirs = Identity::parse(offer);
  if (theirs.host != hostIdentity() || theirs.bytes <= kHeaderBytes || theirs.start != startOf(theirs.pid))
    return nullptr;
  std::unique_ptr<SharedChannel> channel(new SharedChannel);
  channel->file_ = ::open(cat("/proc/", theirs.pid, "/fd/", theirs.file).c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (channel->file_ < 0 || ::fstat(channel->file_, &status) != 0 ||
      static_cast<size_t>(status.st_size) != theirs.bytes)
    return nullptr;
  if (!channel->map(channel->file_, theirs.bytes) || !channel->watch(offer)) return nullptr;
  ::close(std::exchange(channel->file_, -1));
  return channel;
}

bool SharedChannel::watch(const std::string& identity) {
  const Identity theirs = Identity::parse(identity);
  if (theirs.host != hostIdentity()) return false;
  other_ = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(theirs.pid), 0));
  if (other_ < 0 || startOf(theirs.pid) != theirs.start) return false;
  if (file_ >= 0) ::close(std::exchange(file_, -1));  // the other side has mapped it
  return true;
}

SharedChannel::~SharedChannel() {
  if (header_) ::munmap(header_, mapped_bytes_);
  for (const int file : {file_, other_})
    if (file >= 0) ::close(file);
}

void SharedChannel::close() {
  header_->closed.store(1);
  for (Side* side : {&header_->writer, &header_->reader}) {
    side->rings.fetch_add(1);
    wake(side->rings);
  }
}

bool SharedChannel::otherHasEnded() const {
  pollfd end{.fd = other_, .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) > 0;
}

SharedChannel::Outcome SharedChannel::waitFor(const std::function<bool()>& is_over, bool has_begun, Side& other,
                                              const std::function<bool()>& stops) {
  if (is_over()) return Outcome::kDone;
  const auto begin = Clock::now();
  const auto patience = has_begun || late_messages_ < kLateMessages ? kPatience : kLittlePatience;
  const Outcome outcome =
      looksFor(is_over, begin + patience, other) ? Outcome::kDone : sleepUntil(is_over, other, stops);
  if (!has_begun) late_messages_ = Clock::now() - begin > kLate ? late_messages_ + 1 : 0;
  return outcome;
}

// Spinning keeps a core from others. It stops if the other side needs this very core, or if another thread takes the
// core.
bool SharedChannel::looksFor(const std::function<bool()>& is_over, Clock::time_point end, const Side& other) {
  for (auto last = Clock::now(); other.core.load() != ::sched_getcpu();) {
    for (int i = 0; i < kLooks; ++i) {
      if (is_over()) return true;
      relax();
    }
    const auto now = Clock::now();
    if (now > end || now - last > kInterruption) break;
    last = now;
  }
  return false;
}

// The order of these steps matters. A side that moves a count first rings, then looks for sleepers. A side that sleeps
// first marks itself as sleeping, then looks at the count.
SharedChannel::Outcome SharedChannel::sleepUntil(const std::function<bool()>& is_over, Side& other,
                                                 const std::function<bool()>& stops) const {
  while (true) {
    const uint32_t heard = other.rings.load();
    other.is_awaited.store(1);
    if (is_over()) break;
    if (header_->closed.load() != 0 || otherHasEnded()) {
      other.is_awaited.store(0);
      return is_over() ? Outcome::kDone : Outcome::kLost;
    }
    if (stops()) {
      other.is_awaited.store(0);
      return Outcome::kStopped;
    }
    sleepOn(other.rings, heard);
  }
  other.is_awaited.store(0);
  return Outcome::kDone;
}

SharedChannel::Outcome SharedChannel::send(const void* bytes, size_t count, const std::function<bool()>& stops) {
  const auto* from = static_cast<const char*>(bytes);
  Side &own = header_->writer, &reader = header_->reader;
  own.core.store(::sched_getcpu());
  uint64_t written = own.bytes.load();
  for (bool has_begun = false; count > 0; has_begun = true) {
    const size_t wanted = std::min({count, kChunkBytes, ring_bytes_});
    const Outcome outcome =
        waitFor([&] { return ring_bytes_ - (written - reader.bytes.load()) >= wanted; }, has_begun, reader, stops);
    if (outcome != Outcome::kDone) return outcome;
    const size_t at = written % ring_bytes_, first = std::min(wanted, ring_bytes_ - at);
    std::memcpy(ring_ + at, from, first);
    std::memcpy(ring_, from + first, wanted - first);
    from += wanted;
    count -= wanted;
    written += wanted;
    own.moveTo(written);
  }
  return Outcome::kDone;
}

SharedChannel::Outcome SharedChannel::receive(void* bytes, size_t count, const std::function<bool()>& stops) {
  auto* to = static_cast<char*>(bytes);
  Side &own = header_->reader, &writer = header_->writer;
  own.core.store(::sched_getcpu());
  uint64_t read = own.bytes.load();
  for (bool has_begun = false; count > 0; has_begun = true) {
    const Outcome outcome = waitFor([&] { return writer.bytes.load() != read; }, has_begun, writer, stops);
    if (outcome != Outcome::kDone) return outcome;
    const size_t here = std::min<uint64_t>(count, writer.bytes.load() - read);
    const size_t at = read % ring_bytes_, first = std::min(here, ring_bytes_ - at);
    std::memcpy(to, ring_ + at, first);
    std::memcpy(to + first, ring_, here - first);
    to += here;
    count -= here;
    read += here;
    own.moveTo(read);
  }
  return Outcome::kDone;
}

}  // namespace abele::collective
