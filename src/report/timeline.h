// Records a model's calls, action by action, in a trace file: tracks of its devices and of the host, and beside them
// the simulator's prediction for the same program (docs/tracing.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/trace_file.h"
#include "session/session.h"

namespace abele::session {
struct Compiled;
struct Handover;
}  // namespace abele::session

namespace abele::report {

/// The tracks of one compiled program in a file. Used only while there is a trace; devices record the times of their
/// actions in any case. Threads: one at a time.
class Timeline {
 public:
  /// Takes events of the format, each preceded by ",\n", as TraceFile::addLines does.
  using Sink = std::function<void(const std::string& lines)>;
  /// name: name of the model, such as "training".
  Timeline(Sink sink, std::string name);
  /// Requires: file outlives this object.
  Timeline(TraceFile& file, std::string name)
      : Timeline([&file](const std::string& lines) { file.addLines(lines); }, std::move(name)) {}
  /// Adds the session's last call. Requires: all calls pass the same session.
  void note(session::Session& session);
  /// Adds the simulator's prediction of a step with the measured costs, from the start of the last call's first step.
  /// Adds nothing for a program that was not compiled here, or a schedule that cannot be simulated.
  void predict(session::Session& session);
  int64_t numCalls() const { return calls_; }

 private:
  void nameTracks(const session::Compiled& compiled, std::string& lines);
  void addStep(const session::Compiled& compiled, const std::vector<runtime::ActionTime>& actions, size_t first,
               size_t end, const session::Handover& step, std::string& lines) const;

  const Sink sink_;
  const std::string name_;
  const int64_t group_;             // group of tracks (a process number in the format); group_ + 1: the predicted ones
  std::vector<std::string> names_;  // names of segments, as JSON strings
  int64_t calls_ = 0;
};

}  // namespace abele::report
