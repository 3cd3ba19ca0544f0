// The processes that train one model together, over a process group of c10d (PyTorch's torch.distributed).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

namespace at {
class Tensor;
}

namespace abele::runtime {

/// Name under which c10d's registry holds the group that sessions join (c10d::register_process_group).
inline constexpr char kProcessGroup[] = "abele";

/// One process's end. Messages go between two processes at a time and are sent in one order by all, so that nothing
/// depends on who is early. Threads: one call at a time, but for interrupt(), and for the messages of links, each of
/// which has an order, and a thread at each end, of its own.
class Peers {
 public:
  /// Takes the group out of c10d's registry, which does not keep it alive; where none is registered, connects the
  /// processes by the launcher's variables (gloo.h). Further calls with the name share it while it works. Throws E0714
  /// when there is none or it has another size, E0606 when it is broken and no new one was registered.
  static std::shared_ptr<Peers> join(const std::string& group, int64_t process, int64_t processes);
  /// Leaves all groups, so that nobody waits for a process that ends. Later calls throw E0606.
  static void leaveAll();
  virtual ~Peers() = default;

  virtual int64_t process() const = 0;
  virtual int64_t processes() const = 0;

  /// Dense memory to or from another process; who: index of it. Throws E0606 when it failed, ended or is silent for
  /// longer than the group's timeout, E0602 when interrupted.
  virtual void send(const at::Tensor& bytes, int64_t to) = 0;
  virtual void receive(const at::Tensor& bytes, int64_t from) = 0;
  /// The same over a link between two processes. send is done when the memory may change, which says nothing of the
  /// other process.
  virtual void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) = 0;
  virtual void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) = 0;
  /// Everybody's text, by process. Texts have the same length. Throws as send.
  virtual std::vector<std::string> exchange(const std::string& own) = 0;

  /// Ends the wait of another thread, and all later ones until begin().
  virtual void interrupt() = 0;
  /// Before a step. Throws E0606 when the group is broken.
  virtual void begin() = 0;
  /// This process cannot keep in step: tells the others and leaves. They fail at their next message.
  virtual void fail(const std::string& why) = 0;
};

}  // namespace abele::runtime
