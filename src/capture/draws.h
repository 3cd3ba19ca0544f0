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
  /// Says in the finished graph what a micro-batch draws.
  void finish(ir::Graph& graph) const;

 private:
  BodyDraws drawnBy(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, int64_t draws);
  /// Throw E0106.
  void requirePlace(bool holds) const;
  void requireAgain(bool holds) const;

  RandomStream stream_;
  Position& position_;
  NodeRecorder& nodes_;
  const RunOperator decompose_;
  BodyDraws recorded_;  // of the nodes so far
};

}  // namespace abele::capture
