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

namespace abele::collective {

struct DeviceLink;

/// Messages between some processes of a training, which know each other by an index from 0. A message goes between two
/// processes, and all processes send in the same order, so results do not depend on timing. Threads: one call at a
/// time, except messages of links: each link has an order of its own, and a thread at each end.
class PeerMessages {
 public:
  virtual ~PeerMessages() = default;

  virtual int64_t process() const = 0;
  virtual int64_t processes() const = 0;

  /// Sends dense memory to another process, or receives it; to, from: index of that process. Throws E0606 if the other
  /// process failed, ended, or is silent for longer than the group's timeout; throws E0602 if interrupted.
  virtual void send(const at::Tensor& bytes, int64_t to) = 0;
  virtual void receive(const at::Tensor& bytes, int64_t from) = 0;
  /// Sends to and receives from all processes at once: out[k] goes to process k and in[k] comes from it. Undefined
  /// tensors, and those of this process, are left out. If process k sends nothing to this one, in[k] must be undefined;
  /// if it receives nothing, out[k]. Throws the errors of send.
  virtual void trade(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) = 0;
  /// The same over a link between two processes. sendOn returns once the memory may change; the other process may not
  /// have the message yet.
  virtual void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) = 0;
  virtual void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) = 0;
  /// Whether the link sends from and receives into memory of this device (Peers::connectDevices). If so, both calls
  /// above return once the message is enqueued on the device's current stream.
  virtual bool takesDevice(int64_t link, int64_t other, c10::Device device) const = 0;
  /// The texts of all processes, by process. All texts must have the same length. Throws the errors of send.
  std::vector<std::string> exchange(const std::string& own);
};

/// This process's end of the messages to all others, over a process group.
class Peers : public PeerMessages {
 public:
  /// Finds the group in c10d's registry, which does not keep it alive. If no group is registered, connects the
  /// processes by the launcher's variables (gloo.h). Later calls with the name share the group while it works. Throws
  /// E0714 if the group cannot be made or has another size. Throws E0606 if the group is broken and no new one was
  /// registered.
  static std::shared_ptr<Peers> join(const std::string& group, int64_t process, int64_t processes);
  /// The group of this name that this process has joined, or null. Throws E0606 if it is broken.
  static std::shared_ptr<Peers> find(const std::string& group);
  /// Leaves all groups, so that other processes do not wait for this one when it ends. Later calls throw E0606.
  static void leaveAll();

  /// announce() sends all other processes a note of what this one does next together with them, without waiting.
  /// announced() waits for their notes and returns all, by process. This shows whether another process is at a
  /// different place of its program (announcement.h). A note has kNoteBytes. Call announced() before the next
  /// announce(). Both throw the errors of send.
  static constexpr size_t kNoteBytes = 64;
  virtual void announce(const std::string& own) = 0;
  virtual std::vector<std::string> announced() = 0;
  /// Waits until all processes have reached this point of the step, and throws if one does not. Other processes may
  /// have learned by then that this one is ready, so an interruption only shortens the wait to a few seconds. Once all
  /// have agreed, interruptions are ignored until begin(). If a process dies during this call, some processes may
  /// notice it and others not.
  virtual void agree() = 0;

  /// Ends the wait of another thread, and all later waits until begin(). Threads: any.
  virtual void interrupt() = 0;
  /// Called before and after a step. Throws E0606 if the group is broken.
  virtual void begin() = 0;
  /// Bytes of messages that this process has sent, not counting notes. Threads: any.
  virtual int64_t sentBytes() const = 0;
  /// Call if this process cannot take part any more: sends the reason to the others and leaves. They fail at their next
  /// message.
  virtual void fail(const std::string& why) = 0;
  /// For ABELE_HANDOVER=device: from now on, links between accelerators of one kind send directly from the devices'
  /// memory. All processes call it with the same links of a program; only the devices of this process's ends differ
  /// (device_links.h). Throws E0714, E0702 and the errors of send.
  virtual void connectDevices(const std::vector<DeviceLink>& links, int64_t stages) = 0;
  /// The number of the link that measurements use. Links of programs count from 0.
  static constexpr int64_t kMeasuredLink = -1;
};

}  // namespace abele::collective
