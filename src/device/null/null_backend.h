// A device that computes nothing and records everything, for tests of schedules, waits and memory plans.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/null/symbolic.h"
#include "exe/executable.h"
#include "runtime/backend.h"

namespace abele::device {

/// Threads: setters and getters only between steps, by the caller of Runtime::run.
class NullBackend : public runtime::Backend {
 public:
  struct Event {
    int32_t worker = 0, segment = 0, micro_batch = 0;
    bool operator==(const Event&) const = default;
  };

  explicit NullBackend(const exe::Executable& executable) : exe_(executable) {}

  /// The hook is called before every action; it may throw or block. Several workers call it at once.
  void setHook(std::function<void(const runtime::ActionContext&)> hook) { hook_ = std::move(hook); }

  /// A fetch or release of an off-chip frame, in the order of the calls, with the number of events before it.
  struct Move {
    bool is_fetch = false;
    exe::FrameUse frame;
    size_t events_before = 0;
  };
  void moveOffChipMemory(bool moves) { moves_ = moves; }
  /// The hook is called before every fetch; it may throw.
  void setFetchHook(std::function<void(const exe::FrameUse&)> hook) { fetch_hook_ = std::move(hook); }
  std::vector<Move> moves() const;
  bool movesOffChipMemory() const override { return moves_; }
  void fetch(const exe::FrameUse& frame) override;
  void release(const exe::FrameUse& frame) override;

  /// Whether the caller of Runtime::run may do worker 0's part.
  void letCallerWork(bool may) { caller_may_work_ = may; }
  bool canWorkOnThisThread(int32_t) const override { return caller_may_work_; }

  /// Gives every tensor symbolic contents: an operator's result is a mix of its name, constants and operands, so a
  /// wrong byte that is read anywhere changes the outputs. Persistent memory starts as the contents of
  /// Symbol("external/<i>").
  void enableContents();
  /// Contents of argument i for one micro-batch: all bytes from the slot's first to its last. For replica r the index
  /// is r * numInputs() + i, and likewise for results.
  void setInput(int32_t argument, int32_t micro_batch, Bytes contents);
  const Bytes& output(int32_t target, int32_t micro_batch) const { return outputs_[target][micro_batch]; }
  /// Contents of a persistent external, in logical order.
  Bytes external(int32_t index, int32_t replica = 0) const;
  void setExternal(int32_t index, int32_t replica, const Bytes& contents);
  /// Updates of a parameter group mix these numbers in.
  void setNumber(int64_t group, const std::string& name, double value) { numbers_[group][name] = value; }
  /// The hook gets the bytes that an instruction has just written, in logical order; all workers call it at once.
  using WriteHook =
      std::function<void(const runtime::ActionContext&, int32_t instruction, int32_t slot, const Bytes& contents)>;
  void setWriteHook(WriteHook hook) { write_hook_ = std::move(hook); }

  /// The actions of all steps so far, in the order in which they began.
  std::vector<Event> events() const;

  std::unique_ptr<runtime::Device> makeDevice(int32_t worker) override;
  void begin(int64_t step) override;
  void finish(bool completed) override;

 private:
  class NullDevice;

  void execute(int32_t index, const runtime::ActionContext& context);
  void compute(const exe::Instruction& instruction, const runtime::ActionContext& context);
  void receive(const exe::Instruction& instruction, int32_t micro_batch);
  /// The frame that a micro-batch uses.
  Bytes& frame(int32_t group, int32_t micro_batch);
  Bytes read(int32_t slot, int32_t micro_batch);
  void write(int32_t slot, int32_t micro_batch, const Bytes& contents);

  const exe::Executable& exe_;
  std::function<void(const runtime::ActionContext&)> hook_;
  std::function<void(const exe::FrameUse&)> fetch_hook_;
  WriteHook write_hook_;
  std::map<int64_t, std::map<std::string, double>> numbers_;  // by parameter group
  bool caller_may_work_ = false;
  bool moves_ = false;
  bool has_contents_ = false;
  std::vector<std::vector<Bytes>> memory_;       // by group and frame
  std::vector<std::vector<Bytes>> before_step_;  // persistent groups only
  std::vector<std::vector<Bytes>> outputs_;      // by target and micro-batch
  mutable std::mutex mutex_;
  std::vector<Event> events_;                                   // guarded by mutex_
  std::map<int64_t, std::deque<std::vector<Bytes>>> messages_;  // by link; guarded by mutex_
  std::vector<Move> recorded_moves_;
};

}  // namespace abele::device
