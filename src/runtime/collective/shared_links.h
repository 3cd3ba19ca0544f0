// Which links between processes go through shared memory: those within a host. Others stay with the process group.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "runtime/collective/shared_channel.h"

namespace abele::runtime {

/// What ABELE_HANDOVER asks for: links through shared memory within a host, all through sockets, or those between
/// accelerators from device to device and others as with kMemory. Throws E0702.
enum class Handover { kMemory, kSockets, kDevice };
Handover handover();

/// Threads: one for each end of a link; closeAll() from any.
class SharedLinks {
 public:
  /// One end of a link, and the other process.
  struct End {
    int64_t link = 0, process = 0;
    bool sends = false;
    bool operator<(const End& other) const {
      return std::tie(link, process, sends) < std::tie(other.link, other.process, other.sends);
    }
  };
  /// Messages of SharedChannel::kOfferBytes over the link as it is without shared memory.
  using Tell = std::function<void(const std::string&)>;
  using Hear = std::function<std::string()>;

  /// Null: the link goes over the process group. The first call of each end agrees with the other on that, which the
  /// log says. ABELE_HANDOVER=sockets keeps all links there. message_bytes: of the link's first message, which says how
  /// much memory the two ends have.
  std::shared_ptr<SharedChannel> at(const End& end, size_t message_bytes, const Tell& tell, const Hear& hear);
  /// Both directions of a link to a process, behind its last message.
  void drop(int64_t link, int64_t process);
  /// Whoever waits at the other end of a channel hears that it is lost.
  void closeAll();

 private:
  static std::shared_ptr<SharedChannel> makeOut(const End& end, size_t message_bytes, const Tell& tell,
                                                const Hear& hear);
  static std::shared_ptr<SharedChannel> makeIn(const Tell& tell, const Hear& hear);

  std::mutex mutex_;
  std::map<End, std::shared_ptr<SharedChannel>> channels_;
  bool closed_ = false;
};

}  // namespace abele::runtime
