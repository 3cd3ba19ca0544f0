// Captures a worker's enqueued work as graphs of the device, and replays them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "base/device_graphs.h"
#include "device/accelerator/random_position.h"
#include "device/aten/arena.h"
#include "device/aten/step_profile.h"
#include "device/aten/worker_calls.h"
#include "exe/executable.h"
#include "runtime/backend.h"

namespace abele::device {

/// Runs segments whose calls enqueue work on one stream. Apart from the contents of memory, the calls depend on few
/// facts: the frames of the segment's groups, the places of its inputs and results, the places of off-chip frames on
/// the device, and whether a sum begins. For each combination of these, the first run makes the calls, the second
/// captures them, and later runs replay the graph. Calls in which the host computes, and calls that cannot be captured,
/// run each time. Requires: all that it refers to outlives it. pool: the worker's; {0, 0} before the first capture.
/// Threads: the worker's.
class SegmentGraphs {
 public:
  /// process: as in Executable::globalMicroBatch.
  SegmentGraphs(const exe::Executable& executable, int32_t worker, int64_t process, const SlotTable& slots,
                WorkerCalls& calls, RandomPosition& random, const c10::Stream& stream, const StepProfile& profile,
                c10::MempoolId_t& pool);
  ~SegmentGraphs();
  /// Whether the device has graphs, and torch or a maker of lendDeviceGraphs() can make them.
  static bool isAvailable(c10::DeviceType type);
  /// Device memory that a pool holds now; 0 if torch's allocator does not report it.
  static int64_t poolBytes(c10::Device device, c10::MempoolId_t pool);

  /// Requires: the stream is the current one. Throws the errors of the calls.
  void run(const runtime::ActionContext& context);

 private:
  /// Calls [begin, end) that are all captured together, or all run.
  struct Piece {
    std::size_t begin = 0, end = 0;
    bool is_captured = false;
    const exe::Instruction* first_draw = nullptr;
  };
  /// The facts that the calls depend on, as numbers.
  using Choice = std::vector<uint64_t>;
  struct Taken {
    bool has_run = false;
    std::vector<std::unique_ptr<DeviceGraph>> graphs;  // by piece
  };
  struct Captures {
    std::vector<int32_t> groups, inputs, outputs;  // groups, and slots of the caller's tensors, that the calls name
    std::vector<int32_t> off_chip;                 // one slot of each off-chip group that they name
    std::vector<char> runs_each_time;              // by call
    std::vector<Piece> pieces;
    std::map<Choice, Taken> taken;
  };

  void findSlots(const exe::Segment& segment, Captures& captures) const;
  bool canBeCaptured(const exe::Instruction& instruction) const;
  bool usesHost(const exe::Instruction& instruction) const;
  void cut(const exe::Segment& segment, Captures& captures) const;
  Choice choiceOf(const Captures& captures, const runtime::ActionContext& context) const;
  void runCalls(int32_t segment, std::size_t begin, std::size_t end);
  void replay(DeviceGraph& graph, const Piece& piece) const;
  /// Null: the piece cannot be captured, and the segment has been cut in another way.
  std::unique_ptr<DeviceGraph> capture(int32_t segment, const Piece& piece);
  void giveUp(int32_t segment, std::size_t begin, std::size_t end, const std::string& why);

  const exe::Executable& executable_;
  const int64_t process_;
  const SlotTable& slots_;
  WorkerCalls& calls_;
  RandomPosition& random_;
  const c10::Stream stream_;
  const StepProfile& profile_;
  c10::MempoolId_t& pool_;          // for memory of kernels; graphs share it, because they run one after another
  std::vector<Captures> segments_;  // by segment; no pieces for segments that are not replayed
};

}  // namespace abele::device
