#include "runtime/collective/shared_links.h"

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"

namespace abele::runtime {
namespace {

constexpr size_t kRingBytes = size_t{4} << 20;  // of which only what is used takes memory

std::string none() { return std::string(SharedChannel::kOfferBytes, ' '); }

bool mayShare() {
  const std::string chosen = environmentText("ABELE_HANDOVER");
  ABELE_REQUIRE(chosen.empty() || chosen == "memory" || chosen == "sockets", E0702,
                {.what = "environment variable ABELE_HANDOVER is " + chosen, .expected = "memory or sockets"});
  return chosen != "sockets";
}

}  // namespace

std::shared_ptr<SharedChannel> SharedLinks::at(const End& end, const Tell& tell, const Hear& hear) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(end);
    if (found != channels_.end()) return found->second;
  }
  std::shared_ptr<SharedChannel> made = end.sends ? makeOut(end, tell, hear) : makeIn(tell, hear);
  const std::lock_guard lock(mutex_);
  if (made && closed_) made->close();
  return channels_[end] = std::move(made);
}

std::shared_ptr<SharedChannel> SharedLinks::makeOut(const End& end, const Tell& tell, const Hear& hear) {
  std::shared_ptr<SharedChannel> made = mayShare() ? SharedChannel::make(kRingBytes) : nullptr;
  tell(made ? made->offer() : none());
  const std::string answer = hear();
  const bool is_shared = made && answer != none();
  if (is_shared) ABELE_CHECK(made->watch(answer), "a process of this host that cannot be watched");
  log::info("link ", end.link, " to process ", end.process,
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

}  // namespace abele::runtime
