// The processes that train one model together, over a process group of c10d (PyTorch's torch.distributed).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

namespace at {
class Tensor;
}

namespace abele::runtime {

struct DeviceLink;

/// Name under which c10d's registry holds the group that sessions join (c10d::register_process_group).
inline constexpr char kProcessGroup[] = "abele";

/// Messages between some processes of a training, which all know each other by an index from 0 on. They go between two
/// processes at a time and are sent in one order by all, so that nothing depends on who is early. Threads: one call at
/// a time, but for the messages of links, each of which has an order, and a thread at each end, of its own.
class PeerMessages {
 public:
  virtual ~PeerMessages() = default;

  virtual int64_t process() const = 0;
  virtual int64_t processes() const = 0;

  /// Dense memory to or from another process; who: index of it. Throws E0606 when it failed, ended or is silent for
  /// longer than the group's timeout, E0602 when interrupted.
  virtual void send(const at::Tensor& bytes, int64_t to) = 0;
  virtual void receive(const at::Tensor& bytes, int64_t from) = 0;
  /// To and from all at once: out[k] goes to process k while in[k] comes from it. Undefined tensors, and those of this
  /// process, are left out; where k sends nothing here it receives nothing from here, or the other way round. Throws as
  /// send.
  virtual void trade(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) = 0;
  /// The same over a link between two processes. send is done when the memory may change, which says nothing of the
  /// other process.
  virtual void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) = 0;
  virtual void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) = 0;
  /// Does the link take memory of this device, of Peers::connectDevices? Then both calls above are done when the
  /// message has its place in the order of the device's current stream.
  virtual bool takesDevice(int64_t link, int64_t other, c10::Device device) const = 0;
  /// Everybody's text, by process. Texts have the same length. Throws as send.
  std::vector<std::string> exchange(const std::string& own);
};

/// One process's end of all of them, over a process group.
class Peers : public PeerMessages {
 public:
  /// Takes the group out of c10d's registry, which does not keep it alive; where none is registered, connects the
  /// processes by the launcher's variables (gloo.h). Further calls with the name share it while it works. Throws E0714
  /// when there is none or it has another size, E0606 when it is broken and no new one was registered.
  static std::shared_ptr<Peers> join(const std::string& group, int64_t process, int64_t processes);
  /// The group of this name that this process has joined; null: none. Throws E0606 when it is broken.
  static std::shared_ptr<Peers> find(const std::string& group);
  /// Leaves all groups, so that nobody waits for a process that ends. Later calls throw E0606.
  static void leaveAll();

  /// Tells all what this process does next, together with them, and waits for nobody; announced() waits for what the
  /// others say, and gives all, by process. Notes have kNoteBytes, whatever they are about: so a process hears when
  /// another is elsewhere in its program (announcement.h). One note is open at a time. Throw as send.
  static constexpr size_t kNoteBytes = 64;
  virtual void announce(const std::string& own) = 0;
  virtual std::vector<std::string> announced() = 0;
  /// Waits until all have come as far in the step, and throws where one does not. An interruption cannot undo what the
  /// others may have heard by then: it shortens the wait for them to a few seconds, and once all have agreed it is
  /// ignored until begin(). A process that dies while this runs may be missed by some and not by others.
  virtual void agree() = 0;

  /// From any thread: ends the wait of another thread, and all later ones until begin().
  virtual void interrupt() = 0;
  /// Before a step, and behind it. Throws E0606 when the group is broken.
  virtual void begin() = 0;
  /// Bytes of messages that this process has sent, but for notes. Threads: any.
  virtual int64_t sentBytes() const = 0;
  /// This process cannot keep in step: tells the others and leaves. They fail at their next message.
  virtual void fail(const std::string& why) = 0;
  /// ABELE_HANDOVER=device: the links between accelerators of one kind take their memory from now on. All processes
  /// call it, with the same links of a program but for where this one's ends are (device_links.h). Throws E0714, E0702
  /// and as send.
  virtual void connectDevices(const std::vector<DeviceLink>& links, int64_t stages) = 0;
  /// A number that no link of a program has: those count from 0.
  static constexpr int64_t kMeasuredLink = -1;
  /// Behind the last message of a link to another process: frees what this process has of it.
  virtual void dropLink(int64_t link, int64_t other) = 0;
};

}  // namespace abele::runtime
