// Which links between processes go from accelerator to accelerator, through the device's own backend of
// torch.distributed. Others go through the host's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace abele::runtime {

class PeerMessages;

/// A link as one of its ends knows it. The processes of a replica are counted from 0 on.
struct DeviceLink {
  int64_t link = 0, from = 0, to = 0;
  c10::Device own = c10::Device(c10::DeviceType::CPU);  // where this process's end of it is
};

/// A group of two processes that torch.distributed has made, in c10d's registry.
struct DeviceGroup {
  std::string name;     // in the two processes
  std::string why_not;  // there is none; "": there is one
};
/// Makes one with the backend that the program's own group has for this kind of device ("cuda"). process: this one, and
/// the two of the group, of all processes. All processes call it for each group, in one order: c10d asks for that.
using MakeDeviceGroup =
    std::function<DeviceGroup(int64_t process, const std::string& kind, int64_t first, int64_t second)>;
/// What this program makes such groups with: c10d's generic classes have no way to a second communicator that works
/// with every backend, and torch.distributed has new_group. Threads: any.
void setDeviceGroups(MakeDeviceGroup make);

/// Communicators, each for one link between two devices, since the backends of devices ignore tags and match messages
/// by the order of calls. Both ends of a link call in one order: exe::verify refuses a program where they do not, and a
/// thread at each end does what its worker's list says. Messages of several links have no order, so they never share a
/// communicator. Threads: any, after connect().
class DeviceLinks {
 public:
  /// One end of a link: the other process, of all, and the device here.
  struct End {
    int64_t link = 0, other = 0;
    c10::Device device;
    bool operator<(const End& o) const {
      return std::make_tuple(link, other, device.type(), device.index()) <
             std::make_tuple(o.link, o.other, o.device.type(), o.device.index());
    }
  };
  using Communicator = c10::intrusive_ptr<c10d::Backend>;

  /// All processes tell each other where the ends of links are, make the communicators that are new, and try them, one
  /// after the other: so that none is made in the middle of a step, when devices wait for each other. stages: so many
  /// processes have a replica. Throws E0714: in all processes where one has no backend for a device, and in the one
  /// whose backend does not reach another device.
  void connect(PeerMessages& peers, const std::vector<DeviceLink>& links, int64_t stages);
  /// Null: the link goes through the host's memory.
  Communicator at(const End& end) const;
  /// The rank of the other one of its two processes.
  static int otherOf(const c10d::Backend& communicator);
  /// Streams that wait for a message of another process go on, with whatever is there. No message can be sent
  /// afterwards.
  void abort();
  /// In a forked child, where the communicators are the parent's.
  void abandon();

 private:
  // Both ends, as all processes know them: link, processes, indices of their devices.
  using Known = std::tuple<int64_t, int64_t, int64_t, int, int>;
  struct Made {
    End end;
    bool sends;
    Communicator communicator;
  };
  /// The communicators of this process that are new. why_not: what is missing.
  std::vector<Made> make(const PeerMessages& peers, const std::vector<DeviceLink>& links, int64_t stages,
                         const std::vector<std::string>& places, std::string& why_not);
  void tryOut(const Made& made);

  // A link from a device of a process, or from its host, leads to the same device for all programs that have it: who
  // sends and who receives find their communicator by what they know of their own end.
  bool isTheOneOf(int64_t process, c10::Device device, const Known& known);

  std::set<Known> known_;
  std::map<std::tuple<int64_t, int64_t, int, int>, Known> known_at_;  // by link, process, its device
  mutable std::mutex mutex_;                                          // guards what follows
  std::map<End, Communicator> communicators_;
  bool is_aborted_ = false;
};

}  // namespace abele::runtime
