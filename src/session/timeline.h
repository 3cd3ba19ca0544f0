// What a model's calls did and when, action by action, in a trace file: tracks of its devices and of the host, and what
// the simulator says of the same program beside them (docs/tracing.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/session.h"
#include "session/trace_file.h"

namespace abele::host {

struct Compiled;
struct Handover;

/// The tracks of one compiled program in a file. Nothing here is called where nobody traces: devices note when their
/// actions ran in any case. Threads: one at a time.
class Timeline {
 public:
  /// file: outlives it. name: of the model, "training".
  Timeline(TraceFile& file, std::string name);
  /// Adds the session's last call. Requires: it is always the same session.
  void note(Session& session);
  /// Adds what the simulator predicts of a step with the costs that were measured, from where the last call's first
  /// step began. Nothing for a program that was not compiled here, or a schedule that cannot be simulated.
  void predict(Session& session);
  int64_t numCalls() const { return calls_; }

 private:
  void nameTracks(const Compiled& compiled, std::string& lines);
  void addStep(const Compiled& compiled, const std::vector<runtime::ActionTime>& actions, size_t first, size_t end,
               const Handover& step, std::string& lines) const;

  TraceFile& file_;
  const std::string name_;
  const int64_t group_;             // of tracks: a process's number in the format; group_ + 1: the predicted ones
  std::vector<std::string> names_;  // of segments, as JSON has them
  int64_t calls_ = 0;
};

}  // namespace abele::host
