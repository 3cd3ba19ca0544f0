// What a worker enqueues, captured as graphs of the device and replayed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "base/device_graphs.h"
#include "exe/executable.h"
#include "runtime/backend.h"
#include "runtime/device/accelerator/random_position.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/step_profile.h"
#include "runtime/device/aten/worker_calls.h"

namespace abele::runtime {

/// Runs segments whose calls enqueue work on one stream. What the calls do depends on few things beside the contents of
/// memory: the frames of the segment's groups, where its inputs and results are, where off-chip frames are on the
/// device, whether a sum begins. For each choice
/// of them the calls run the first time; the second time they are captured, and from then on replayed. Calls that the
/// host takes part in, and all that a capture stumbles over, run each time. Everything it refers to outlives it. pool:
/// of the worker; none yet ({0, 0}) until something was captured.
/// Threads: the worker's.
class SegmentGraphs {
 public:
  /// process: as of Executable::globalMicroBatch.
  SegmentGraphs(const exe::Executable& executable, int32_t worker, int64_t process, const SlotTable& slots,
                WorkerCalls& calls, RandomPosition& random, const c10::Stream& stream, const StepProfile& profile,
                c10::MempoolId_t& pool);
  ~SegmentGraphs();
  /// Has the device graphs, and torch or somebody who lends them a way to them?
  static bool isAvailable(c10::DeviceType type);
  /// Device memory that a pool holds by now; 0 where torch's allocator does not tell.
  static int64_t poolBytes(c10::Device device, c10::MempoolId_t pool);

  /// Requires: the stream is the current one. Throws what the calls throw.
  void run(const ActionContext& context);

 private:
  /// Calls [begin, end) that are captured together, or none of which is.
  struct Piece {
    std::size_t begin = 0, end = 0;
    bool is_captured = false;
    const exe::Instruction* first_draw = nullptr;
  };
  /// What the calls depend on, as numbers.
  using Choice = std::vector<uint64_t>;
  struct Taken {
    bool has_run = false;
    std::vector<std::unique_ptr<DeviceGraph>> graphs;  // by piece
  };
  struct Captures {
    std::vector<int32_t> groups, inputs, outputs;  // groups, and slots of the caller's, that the calls name
    std::vector<int32_t> off_chip;                 // of each off-chip group, a slot that they name
    std::vector<char> runs_each_time;              // by call
    std::vector<Piece> pieces;
    std::map<Choice, Taken> taken;
  };

  void findSlots(const exe::Segment& segment, Captures& captures) const;
  bool canBeCaptured(const exe::Instruction& instruction) const;
  bool usesHost(const exe::Instruction& instruction) const;
  void cut(const exe::Segment& segment, Captures& captures) const;
  Choice choiceOf(const Captures& captures, const ActionContext& context) const;
  void runCalls(int32_t segment, std::size_t begin, std::size_t end);
  void replay(DeviceGraph& graph, const Piece& piece) const;
  /// Null: it cannot be captured, and is cut otherwise from now on.
  std::unique_ptr<DeviceGraph> capture(int32_t segment, const Piece& piece);
  void giveUp(int32_t segment, std::size_t begin, std::size_t end, const std::string& why);

  const exe::Executable& executable_;
  const int64_t process_;
  const SlotTable& slots_;
  WorkerCalls& calls_;
  RandomPosition& random_;
  const c10::Stream stream_;
  const StepProfile& profile_;
  c10::MempoolId_t& pool_;          // of what kernels allocate: one for all graphs, which follow each other
  std::vector<Captures> segments_;  // by segment; without pieces for those that are not replayed
};

}  // namespace abele::runtime
