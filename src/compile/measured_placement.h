// Chooses how many devices run a program, and how they share it, under `devices("measured")`, in C++
// `abele::wholeMachine()`: runs a few steps of the program with each candidate on this machine, and takes the fastest.
// Docs: docs/placement.md; ADR 17 says why no cost model chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compile/compiler.h"

namespace abele::compile {

/// A way to use several devices: as a pipeline, or taking the micro-batches in turn.
struct PlacementCandidate {
  int devices = 1;
  bool in_turn = false;
  bool operator==(const PlacementCandidate&) const = default;
};

/// A candidate that was tried.
struct PlacementTrial {
  PlacementCandidate candidate = {};
  int threads = 1;      // threads of each device
  int64_t step_ns = 0;  // time of a call of the model; 0: not run
  std::string refused;  // why it was not run, one line
  bool operator==(const PlacementTrial&) const = default;
};

struct MeasuredPlacement {
  std::string machine;                 // the machine of the measurement: processor, cores, threads, torch
  std::vector<PlacementTrial> trials;  // by number of devices; empty: nothing was measured

  /// The trial with the shortest step; among equals, the fewest devices. Requires: at least one trial ran.
  const PlacementTrial& best() const;
  /// One row per trial, for `explain`.
  std::string text() const;
};

/// Returns true if the options choose measured devices.
bool measuresDevices(const ProgramOptions& options);

/// The reason why the program cannot be tried; empty if it can. graph: as captured.
std::string whyNotMeasured(const ir::Graph& graph, const ProgramOptions& options);

/// One device, and both ways for each divisor of the cores, up to the number of micro-batches that can be in progress
/// at once. may_take_turns: the program may run on devices that take micro-batches in turn.
std::vector<PlacementCandidate> placementCandidates(int cores, int64_t micro_batches, bool may_take_turns);
/// The candidates for a replica of this program on this machine.
std::vector<PlacementCandidate> placementCandidates(const ProgramOptions& options);

/// The options of a call with one update and one micro-batch for each of these devices. Trials of long calls run such a
/// call.
ProgramOptions shortCall(ProgramOptions options, int devices);

/// A call of a program that was timed.
struct TimedCall {
  int threads = 1;             // threads of each device
  int64_t call_ns = 0;         // time of the call
  int64_t micro_batch_ns = 0;  // time that one more micro-batch would add, from the work of the busiest device
};
/// The time of a call of the program, from the call that was timed. timed: the options of that call.
int64_t wholeCallNs(const ProgramOptions& options, const ProgramOptions& timed, const TimedCall& call);

/// Tries the candidates in order. Stops after two numbers of devices in a row with which all ways were slower than the
/// best. Then tries those within a fifth of the best again, and keeps the shorter times. A candidate whose trial throws
/// a UserError is refused. If all are refused, throws the first one's error.
using Try = std::function<PlacementTrial(const PlacementCandidate& candidate, bool again)>;
std::vector<PlacementTrial> tryCandidates(const std::vector<PlacementCandidate>& candidates, const Try& run);

/// Processor, cores, intra-op threads and torch. Measured times are valid only on a machine with the same text.
std::string machineText(const ProgramOptions& options);

/// Measured placements in a folder, one file per program and machine. With an empty folder they live as long as the
/// process. Threads: safe, also among processes.
class PlacementStore {
 public:
  /// program: from cacheKey.
  PlacementStore(std::string folder, const std::string& program, std::string machine);
  /// Returns nothing if there is no file. Warns and returns nothing if the file is damaged or from another machine.
  std::optional<MeasuredPlacement> find() const;
  /// Warns if the file cannot be written.
  void keep(const MeasuredPlacement& placement) const;

 private:
  std::string folder_, key_, machine_;
};

/// Writes and reads the text of a file. readPlacement returns nothing for text that writePlacement did not make.
std::string writePlacement(const MeasuredPlacement& placement);
std::optional<MeasuredPlacement> readPlacement(const std::string& text);

/// Loads a program onto its devices, times its calls, and removes it. again: the program ran in an earlier trial.
using TimeProgram = std::function<TimedCall(MadeProgram program, const ProgramOptions& options, bool again)>;

/// Returns the options with the fastest candidate, measured now or earlier; unchanged if they do not choose
/// measured devices. Warns about a program that cannot be tried, and gives it one device per core. recording, made:
/// from captureProgram. Throws the errors of compileRecording.
ProgramOptions measureDevices(const CompileRequest& request, const capture::Recording& recording,
                              const MadeProgram& made, const TimeProgram& time, MeasuredPlacement& placement);

}  // namespace abele::compile
