// Links between processes that go directly from accelerator to accelerator, through the device's own backend of
// torch.distributed. All other links go through the host's memory.
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

namespace abele::collective {

class PeerMessages;

/// One end's view of a link. The processes of a replica are counted from 0.
struct DeviceLink {
  int64_t link = 0, from = 0, to = 0;
  c10::Device own = c10::Device(c10::DeviceType::CPU);  // the device of this process's end
};

/// A group of two processes that torch.distributed made. It is in c10d's registry.
struct DeviceGroup {
  std::string name;     // the same in both processes
  std::string why_not;  // the reason if the group could not be made; otherwise ""
};
/// Makes a group with the backend that the program's own group has for this kind of device ("cuda"). process: this
/// process; first, second: the two processes of the group; all three count over all processes. Every process must call
/// it for every group, in the same order, because c10d requires that.
using MakeDeviceGroup =
    std::function<DeviceGroup(int64_t process, const std::string& kind, int64_t first, int64_t second)>;
/// Sets the function that makes such groups. c10d's generic classes cannot make a second communicator with every
/// backend, but torch.distributed has new_group.   Threads: any.
void setDeviceGroups(MakeDeviceGroup make);

/// The communicators, one for each link between two devices. Backends of devices ignore tags and match messages by the
/// order of calls. Both ends of a link make their calls in the same order: exe::verify ensures it, and one thread at
/// each end follows its worker's list. Messages of several links have no common order, so they never share a
/// communicator.   Threads: any, after connect().
class DeviceLinks {
 public:
  /// One end of a link: the other process, counted over all processes, and the device of this process.
  struct End {
    int64_t link = 0, other = 0;
    c10::Device device;
    bool operator<(const End& o) const {
      return std::make_tuple(link, other, device.type(), device.index()) <
             std::make_tuple(o.link, o.other, o.device.type(), o.device.index());
    }
  };
  using Communicator = c10::intrusive_ptr<c10d::Backend>;

  /// Exchanges the devices of all ends of links, then makes the new communicators and tries them one after the other.
  /// This is done here because making a communicator in the middle of a step could block devices that wait for each
  /// other. stages: the number of processes that hold one replica. Throws E0714 in all processes if one has no backend
  /// for a device; in one process alone if its backend does not reach another device.
  void connect(PeerMessages& peers, const std::vector<DeviceLink>& links, int64_t stages);
  /// The communicator of an end; null if the link goes through the host's memory.
  Communicator at(const End& end) const;
  /// The rank of the other process of the two.
  static int otherOf(const c10d::Backend& communicator);
  /// Lets streams that wait for another process's message continue with undefined data. No message can be sent
  /// afterwards.
  void abort();
  /// Call in a forked child: forgets the communicators, which belong to the parent.
  void abandon();

 private:
  // A link as both ends know it: number, processes, indices of their devices.
  using Known = std::tuple<int64_t, int64_t, int64_t, int, int>;
  struct Made {
    End end;
    bool sends;
    Communicator communicator;
  };
  /// Makes the communicators that are new in this process. why_not: the reason if one cannot be made.
  std::vector<Made> make(const PeerMessages& peers, const std::vector<DeviceLink>& links, int64_t stages,
                         const std::vector<std::string>& places, std::string& why_not);
  void tryOut(const Made& made);

  // Whether this link, from this device or host of a process, leads to the same device as in all earlier programs. If
  // so, each end can find the communicator by its own device alone.
  bool isTheOneOf(int64_t process, c10::Device device, const Known& known);

  std::set<Known> known_;
  std::map<std::tuple<int64_t, int64_t, int, int>, Known> known_at_;  // by link, process, and kind and index of device
  mutable std::mutex mutex_;                                          // guards the members below
  std::map<End, Communicator> communicators_;
  bool is_aborted_ = false;
};

}  // namespace abele::collective
