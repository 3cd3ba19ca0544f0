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

/// Exchanges rows between the workers of one stage in all replicas. All workers exchange in the same order.
/// Threads: safe.   Owns: no tensors.
class ReplicaExchange {
 public:
  /// Throws E0501 unless the workers of a stage exchange equally often in all replicas; E0711 with several processes.
  explicit ReplicaExchange(const exe::Executable& executable);

  static bool isExchange(const exe::Instruction& instruction);
  /// Whether the executable has several replicas that exchange values.
  static bool isNeeded(const exe::Executable& executable);
  /// Whether workers wait for each other. Then no worker may run on the caller's thread, which could not be woken.
  bool hasWaits() const { return !rooms_.empty(); }
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots, int32_t worker);

  /// Called before each step.
  void begin();
  /// Until begin(), every waiting worker throws E0602.
  void interrupt();

 private:
  struct Room {
    std::mutex mu;
    std::condition_variable changed;
    std::vector<const at::Tensor*> given;  // by replica
    std::size_t arrived = 0, left = 0;
    bool is_aborted = false;
    /// Copies into row r of `to` the row that replica r sends to `replica`.
    void exchange(std::size_t replica, const at::Tensor& from, const at::Tensor& to);
  };

  const exe::Executable& executable_;
  std::vector<std::size_t> room_of_worker_;
  std::vector<std::unique_ptr<Room>> rooms_;
};

}  // namespace abele::device
