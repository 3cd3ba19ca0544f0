// Random operators: which numbers of the device's stream each of them draws. Used by recorder.cc.
#pragma once

#include <cstdint>

#include "capture/boxed_call.h"
#include "capture/node_recorder.h"
#include "capture/position.h"
#include "capture/random_stream.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
class Draws {
 public:
  /// start: as of RandomStream. decompose: records what an operator calls instead of it.
  Draws(const at::Generator* start, Position* position, NodeRecorder* nodes, RunOperator decompose)
      : stream_(start, position->device), position_(*position), nodes_(*nodes), decompose_(std::move(decompose)) {}

  /// May the operator draw random numbers?
  static bool mayDraw(const c10::OperatorHandle& op);
  /// Puts the stream's generator in the place of the one that the program leaves out. Throws E0106 where it names its
  /// own.
  void lendGenerator(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Runs an operator that may draw, and records it with its numbers; one whose schema names no generator is
  /// decomposed. Throws E0106.
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack, NodeRecorder::Call& call);
  /// 32-bit draws of the micro-batch.
  int64_t total() const { return stream_.total(); }

 private:
  RandomStream stream_;
  Position& position_;
  NodeRecorder& nodes_;
  const RunOperator decompose_;
  int64_t recorded_ = 0;  // draws of the nodes so far
};

}  // namespace abele::capture
