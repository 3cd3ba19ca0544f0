// How many devices an AutoSplit gets under `devices("measured")`, in C++ `abele::wholeMachine()`: the program of each
// candidate runs a few steps on this machine, and the fastest is taken.
// Docs: docs/placement.md; ADR 17 says why no cost model chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compile/compiler.h"

namespace abele::host {

/// A number of devices that was tried.
struct PlacementTrial {
  int devices = 1;
  int threads = 1;      // of each
  int64_t step_ns = 0;  // a call of the model, median; 0: it was not run
  std::string refused;  // why not, one line
  bool operator==(const PlacementTrial&) const = default;
};

struct MeasuredPlacement {
  std::string machine;                 // where it was measured: processor, cores, threads, torch
  std::vector<PlacementTrial> trials;  // by number of devices; empty: nothing was measured

  /// The shortest step; of equals, the fewest devices. Requires: one that ran.
  const PlacementTrial& best() const;
  /// A row for each trial, for `explain`.
  std::string text() const;
};

/// Did the user ask for it?
bool measuresDevices(const ProgramOptions& options);

/// Why the program cannot be tried; empty if it can. graph: as captured.
std::string whyNotMeasured(const ir::Graph& graph, const ProgramOptions& options);

/// The divisors of the cores up to the number of micro-batches that can be in work at once. At least 1.
std::vector<int> deviceCandidates(int cores, int64_t micro_batches);
/// For a replica of this program on this machine.
std::vector<int> deviceCandidates(const ProgramOptions& options);

/// Tries the candidates in order, and ends when two in a row are slower than the best before them. A candidate whose
/// trial throws a UserError is refused; where all are, the first one's error is thrown.
using Try = std::function<PlacementTrial(int devices)>;
std::vector<PlacementTrial> tryCandidates(const std::vector<int>& candidates, const Try& run);

/// Processor, cores, intra-op threads and torch: what measured times are valid for.
std::string machineText(const ProgramOptions& options);

/// What was measured, kept in a folder (empty: for as long as the process lives), a file for each program and machine.
/// Threads: safe, also among processes.
class PlacementStore {
 public:
  /// program: of cacheKey.
  PlacementStore(std::string folder, const std::string& program, std::string machine);
  /// Nothing if nothing was kept. Nothing, with a warning, if the file is damaged or of another machine.
  std::optional<MeasuredPlacement> find() const;
  /// Warns if the file cannot be written.
  void keep(const MeasuredPlacement& placement) const;

 private:
  std::string folder_, key_, machine_;
};

/// The text of a file, and back. readPlacement returns nothing for text that writePlacement did not make.
std::string writePlacement(const MeasuredPlacement& placement);
std::optional<MeasuredPlacement> readPlacement(const std::string& text);

/// Loads a program onto its devices, times its steps, and removes it again.
using TimeProgram = std::function<PlacementTrial(MadeProgram program, const ProgramOptions& options)>;

/// The options with the number of devices that is fastest, measured now or earlier; unchanged if the user did not ask
/// for it. A program that cannot be tried gets a device for each core, with a warning. recording, made: of
/// captureProgram. Throws as compileRecording.
ProgramOptions measureDevices(const CompileRequest& request, const capture::Recording& recording,
                              const MadeProgram& made, const TimeProgram& time, MeasuredPlacement& placement);

}  // namespace abele::host
