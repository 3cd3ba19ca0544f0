// abele_op::all_to_all: replicas exchange rows in the middle of a micro-batch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/aten/arena.h"
#include "device/aten/operator_call.h"
#include "exe/executable.h"

namespace abele::device {

/// Where the workers of one stage in all replicas meet. They exchange in the same order.
/// Threads: safe.   Owns: no tensors.
class ReplicaExchange {
 public:
  /// Throws E0501 unless the workers of a stage exchange equally often in all replicas; E0711 with several processes.
  explicit ReplicaExchange(const exe::Executable& executable);

  static bool isExchange(const exe::Instruction& instruction);
  /// Whether the executable has several replicas which exchange values.
  static bool isNeeded(const exe::Executable& executable);
  /// A worker on the caller's thread could not be woken while it waits for others.
  bool hasWaits() const { return !rooms_.empty(); }
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots, int32_t worker);

  /// Before each step.
  void begin();
  /// Every worker that waits throws E0602, until begin().
  void interrupt();

 private:
  struct Room {
    std::mutex mu;
    std::condition_variable changed;
    std::vector<const at::Tensor*> given;  // by replica
    std::size_t arrived = 0, left = 0;
    bool is_aborted = false;
    /// Row r of `to` becomes the row of replica r that is for `replica`.
    void exchange(std::size_t replica, const at::Tensor& from, const at::Tensor& to);
  };

  const exe::Executable& executable_;
  std::vector<std::size_t> room_of_worker_;
  std::vector<std::unique_ptr<Room>> rooms_;
};

}  // namespace abele::device
