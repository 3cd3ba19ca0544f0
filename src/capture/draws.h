// Finds which random numbers each operator draws, from the device's stream or from one of the program's own generators.
// Used by recorder.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "capture/boxed_call.h"
#include "capture/capture.h"
#include "capture/default_mark.h"
#include "capture/node_recorder.h"
#include "capture/position.h"
#include "capture/random_stream.h"

namespace abele::capture {

/// The text of an error: the operator at this line draws after the program has seeded or replaced the generator.
Message seededText(const std::string& at);

/// Threads: one at a time, as Recorder.
class Draws {
 public:
  /// decompose: records the operators that an operator calls in its place. Requires: the request outlives this object.
  Draws(const Request& request, Position* position, NodeRecorder* nodes, RunOperator decompose);
  ~Draws();
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  /// Whether the operator may draw random numbers.
  static bool mayDraw(const c10::OperatorHandle& op);
  /// Passes the stream's generator to the operator if the program passes none. If it passes one of its own, makes a
  /// stream for that generator. Throws E0106 if the generator's numbers cannot be drawn again.
  void lendGenerator(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Runs an operator that may draw, and records it with its position in the stream. Decomposes an operator whose
  /// schema has no generator. Throws E0106.
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack, NodeRecorder::Call& call);
  /// While an operator is tried out, runs an operator that it calls. Returns false if none is being tried out.
  bool tryOut(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Adds the draws of a micro-batch to the finished recording. Throws E0106.
  void finish(Recording& recording);

 private:
  /// One of the program's own generators. Nodes refer to it by its index here plus one.
  struct Own {
    std::unique_ptr<RandomStream> stream;
    bool restarts = false;
    std::string at;  // the line that drew first
  };

  int64_t numberOf(const at::Generator& generator);
  int64_t addOwn(const at::Generator& generator);
  RandomStream& streamNow() { return number_ == 0 ? stream_ : *own_[static_cast<size_t>(number_ - 1)].stream; }
  bool isDefault(const at::Generator& generator) const;
  void followDefault();
  BodyDraws drawnBy(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, int64_t draws);
  /// Throw E0106.
  void requirePlace(bool holds) const;
  void requireAgain(bool holds) const;

  const Request& request_;
  std::vector<at::Generator> before_;  // copies of Request::generators, made before forward ran and before they were
                                       // marked
  RandomStream stream_;                // the device's
  std::optional<DefaultMark> mark_;    // empty on accelerators
  std::vector<Own> own_;
  int64_t number_ = 0;  // the stream that the operator draws from; 0: the device's
  Position& position_;
  NodeRecorder& nodes_;
  const RunOperator decompose_;
  BodyDraws recorded_;  // the draws of the nodes so far
  bool is_trying_ = false;
  std::string seeded_at_;  // the first operator that draws after a seed, which has no effect
};

}  // namespace abele::capture
