#include "collective/shared_links.h"

#include <algorithm>
#include <bit>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"

namespace abele::collective {
namespace {

// A ring is used all over in time, and takes its memory in both processes. Two messages fit, so that one is read while
// the next is written. Larger messages go through in pieces.
constexpr size_t kLeastRing = size_t{256} << 10, kMostRing = size_t{1} << 20;

size_t ringBytes(size_t message_bytes) { return std::clamp(std::bit_ceil(2 * message_bytes), kLeastRing, kMostRing); }

bool mayShare() { return handover() != Handover::kSockets; }

std::string none() { return std::string(SharedChannel::kOfferBytes, ' '); }

}  // namespace

Handover handover() {
  const std::string chosen = environmentText("ABELE_HANDOVER");
  if (chosen == "sockets") return Handover::kSockets;
  if (chosen == "device") return Handover::kDevice;
  ABELE_REQUIRE(chosen.empty() || chosen == "memory", E0702,
                {.what = "environment variable ABELE_HANDOVER is " + chosen, .expected = "memory, sockets or device"});
  return Handover::kMemory;
}

std::shared_ptr<SharedChannel> SharedLinks::at(const End& end, size_t message_bytes, const Tell& tell,
                                               const Hear& hear) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(end);
    if (found != channels_.end()) return found->second;
  }
  std::shared_ptr<SharedChannel> made = end.sends ? makeOut(end, message_bytes, tell, hear) : makeIn(tell, hear);
  const std::lock_guard lock(mutex_);
  if (made && closed_) made->close();
  return channels_[end] = std::move(made);
}

std::shared_ptr<SharedChannel> SharedLinks::makeOut(const End& end, size_t message_bytes, const Tell& tell,
                                                    const Hear& hear) {
  std::shared_ptr<SharedChannel> made = mayShare() ? SharedChannel::make(ringBytes(message_bytes)) : nullptr;
  tell(made ? made->offer() : none());
  const std::string answer = hear();
  const bool is_shared = made && answer != none();
  if (is_shared) ABELE_CHECK(made->watch(answer), "cannot watch a process of this host");
  const std::string name = end.link < 0 ? "the link for measurements" : cat("link ", end.link);
  log::info(name, " to process ", end.process,
            is_shared ? " hands over through shared memory"
                      : " hands over through sockets: the process is on another "
                        "host, cannot be reached, or ABELE_HANDOVER says so");
  return is_shared ? made : nullptr;
}

std::shared_ptr<SharedChannel> SharedLinks::makeIn(const Tell& tell, const Hear& hear) {
  const std::string offer = hear();
  std::shared_ptr<SharedChannel> made = offer != none() && mayShare() ? SharedChannel::open(offer) : nullptr;
  tell(made ? SharedChannel::identify() : none());
  return made;
}

void SharedLinks::closeAll() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& [end, channel] : channels_)
    if (channel) channel->close();
}

}  // namespace abele::collective
