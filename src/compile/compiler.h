// From a program to the executable of its devices: capture, passes, plan, executable, or an entry of the cache. Used by
// Session. Next: lowering.h, placement.h, default_schedule.h, memory_limit.cc, executable_cache.h.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.h"
#include "compile/compiled_program.h"
#include "exe/build/build.h"
#include "plan/plan.h"

namespace abele::compile {

/// A waiting call calls this about every 50 ms, on its own thread. If it returns true or throws, the wait ends.
using Poll = std::function<bool()>;

/// The tensors of a model that is made on the meta device.
struct MetaTensors {
  /// Allocates and fills the tensors that devices of this process need. needed: their indices in the model. Empty if
  /// the model cannot provide contents.
  std::function<void(const std::vector<size_t>& needed)> materialize = {};
  bool any = false;  // the model had meta tensors before its first program was loaded; the same in all processes
};

/// The input of a compilation. forward and model are as in capture::Request.
struct Program {
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> forward;
  std::vector<capture::ModelTensor> model;
  std::function<std::string()> source_location;
  void* mode_object = nullptr;
  bool checks_comparisons = false;                                   // as in capture::Request
  std::function<std::string(const c10::StorageImpl*)> name_of = {};  // as in capture::Request
  std::function<void()> free_garbage = {};                           // as in capture::Request
  std::function<std::string(int32_t)> reads_model = {};              // as in capture::Request
  std::function<void(const capture::Recording&)> recorded = {};      // called with the recording of the capture
  /// Called after the first capture. Returns the module of the front end's language (Python's random, numpy) whose
  /// generator was used meanwhile; "" if none was. May be empty.
  std::function<std::string()> draws = {};
  /// Finds capture::Request::generators before forward runs. Empty if they are not known.
  std::function<std::vector<at::Generator>()> generators = {};
  /// Called with the devices of one replica's stages before the program is loaded. May throw.
  std::function<void(const std::vector<int>& stage_devices)> check_devices = {};
  std::function<void(int progress, int total)> progress = {};  // called while compiling, first with 0, last with total
  Poll poll = {};
  MetaTensors meta = {};
};

/// The times of a compilation, phase by phase, in order.
class PhaseTimes {
 public:
  /// Ends the current phase, which began with the object or at the end of the previous phase.
  void end(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    times_.emplace_back(name, std::chrono::duration<double>(now - begin_).count());
    begin_ = now;
  }
  const std::vector<std::pair<std::string, double>>& times() const { return times_; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, double>> times_;
};

/// A compiled program and intermediate results of its compilation.
struct MadeProgram : CompiledProgram {
  // For people; absent if the program was loaded or found in the cache.
  ir::Graph captured;
  ir::Graph graph;  // after the passes
  plan::Plan plan;
  bool is_made_here = false;
  PhaseTimes phases;
  exe::Origins origins;  // filled if the request asks for it
};

struct CompileRequest {
  const Program& program;
  const std::vector<at::Tensor>& inputs;  // full-size tensors of one call
  const ProgramOptions& options;
  bool keeps_origins = false;
  /// Loads a cached program onto its devices. If the program cannot be used, throws and changes nothing.
  std::function<void()> load;
};

/// Captures the program, and sets the fields of `made` that follow from the recording. Requires: made.optimizer and
/// made.groupings are set. generator: the random stream of micro-batch 0. Throws E01xx.
capture::Recording captureProgram(const CompileRequest& request, at::Generator& generator, MadeProgram& made);
/// Fills `made` from the recording. Returns: true if the executable came from the cache; `load` was called then.
/// Throws E02xx to E05xx.
bool compileRecording(const CompileRequest& request, capture::Recording recording, MadeProgram& made);

/// Sets the fields that follow from the recording. Does not set the executable and the anchors.
void describe(MadeProgram& compiled, const capture::Recording& recording, const std::vector<at::Tensor>& inputs);
/// Sets the names and devices of the stages, from graph and plan.
void describeStages(MadeProgram& compiled);
/// The part of a program that the cache stores (LoweredProgram).
CompiledProgram executableOnly(const MadeProgram& compiled);
/// Adds the cached part to `compiled`. recorded: the program as captured. Throws E0501 for another program's
/// executable.
void takeExecutable(CompiledProgram found, MadeProgram& compiled, const ir::Graph& recorded);
/// A new generator of this device at this seed.
at::Generator newGenerator(c10::Device device, uint64_t seed);
/// A new generator, never the default one, at the start of micro-batch 0 of the first step.
at::Generator makeGenerator(const ProgramOptions& options);

/// The capture request of this program, without arguments and generators.
capture::Request requestOf(const Program& program, const ProgramOptions& options);
/// The program's own generators, for Request::generators. Looks through all objects that the program reaches.
std::vector<at::Generator> ownGenerators(const Program& program);

}  // namespace abele::compile
