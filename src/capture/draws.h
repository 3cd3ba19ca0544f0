// Random operators: which numbers of which stream each of them draws: the device's, or that of a generator of the
// program's own. Used by recorder.cc.
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

/// The text of an error: an operator at this place draws after the program has seeded or replaced the generator.
Message seededText(const std::string& at);

/// Threads: one at a time, as Recorder.
class Draws {
 public:
  /// decompose: records what an operator calls instead of it. The request outlives it.
  Draws(const Request& request, Position* position, NodeRecorder* nodes, RunOperator decompose);
  ~Draws();
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;

  /// May the operator draw random numbers?
  static bool mayDraw(const c10::OperatorHandle& op);
  /// Puts the stream's generator in the place of the one that the program leaves out; one of the program's own gets a
  /// stream of its own. Throws E0106 where that one's numbers cannot be drawn again.
  void lendGenerator(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Runs an operator that may draw, and records it with its numbers; one whose schema names no generator is
  /// decomposed. Throws E0106.
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack, NodeRecorder::Call& call);
  /// Runs an operator that another one calls while that one is tried out; false: none is.
  bool tryOut(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Says in the finished recording what a micro-batch draws. Throws E0106.
  void finish(Recording& recording);

 private:
  /// A generator of the program's own. Nodes name it by its number: its place here and one.
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
  std::vector<at::Generator> before_;  // of Request::generators: copies made before forward ran, and they were marked
  RandomStream stream_;                // the device's
  std::optional<DefaultMark> mark_;    // none on accelerators
  std::vector<Own> own_;
  int64_t number_ = 0;  // of the stream that the operator draws from; 0: the device's
  Position& position_;
  NodeRecorder& nodes_;
  const RunOperator decompose_;
  BodyDraws recorded_;  // of the nodes so far
  bool is_trying_ = false;
  std::string seeded_at_;  // the first operator that draws after a seed, which has no effect
};

}  // namespace abele::capture
