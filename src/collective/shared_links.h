// Decides which links between processes use shared memory: those within a host. Other links use the process group.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "collective/shared_channel.h"

namespace abele::collective {

/// The transport that ABELE_HANDOVER chooses. kMemory: shared memory within a host. kSockets: sockets for all links.
/// kDevice: links between accelerators go from device to device, the others as with kMemory. Throws E0702.
enum class Handover { kMemory, kSockets, kDevice };
Handover handover();

/// Threads: one thread for each end of a link; closeAll() from any.
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
  /// Functions that send and receive SharedChannel::kOfferBytes over a link before it has shared memory.
  using Tell = std::function<void(const std::string&)>;
  using Hear = std::function<std::string()>;

  /// The channel of an end; null if the link uses the process group. At the first call the two ends agree on a channel
  /// or the group, and log the choice. ABELE_HANDOVER=sockets keeps all links on the group. message_bytes: the size of
  /// the link's first message, which determines the size of the shared memory.
  std::shared_ptr<SharedChannel> at(const End& end, size_t message_bytes, const Tell& tell, const Hear& hear);
  /// Closes all channels; the processes that wait at the other ends get kLost.
  void closeAll();

 private:
  static std::shared_ptr<SharedChannel> makeOut(const End& end, size_t message_bytes, const Tell& tell,
                                                const Hear& hear);
  static std::shared_ptr<SharedChannel> makeIn(const Tell& tell, const Hear& hear);

  std::mutex mutex_;
  std::map<End, std::shared_ptr<SharedChannel>> channels_;
  bool closed_ = false;
};

}  // namespace abele::collective
