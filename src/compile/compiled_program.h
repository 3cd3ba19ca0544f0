// The product of one compilation, as data: an Executable and all that the host needs to run it. A Session holds it;
// .poptorch files and the executable cache store it. It has no graph, no plan, no forward.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/capture.h"
#include "compile/program_options.h"
#include "exe/executable.h"

namespace abele::compile {

/// One flattened result of forward.
struct CompiledResult {
  int32_t target = -1;  // index in Executable::output_slots; -1: a host tensor, returned unchanged
  Type type;            // type in one micro-batch
};
/// An argument that forward writes into.
struct WrittenArgument {
  int32_t argument = 0;
  int32_t target = 0;
  Type type;  // type in one micro-batch
};
/// A value inside the program that the host reads after each call.
struct CompiledAnchor {
  std::string name;  // the short name
  int32_t target = 0;
  Type type;             // type in one micro-batch
  int32_t updated = -1;  // external whose new value this is; such a value exists once per update, not once per
                         // micro-batch
  OutputMode mode = OutputMode::kAll;
  int64_t period = 1;
};
struct CompiledStage {
  std::string name;
  int32_t device = 0;
  int32_t worker = 0;
  int32_t replica = 0;
};

/// The part of a program that the cache stores. All else follows from the recording.
struct LoweredProgram {
  std::string key;  // result of cacheKey: identifies the input of the compilation
  exe::Executable executable;
  std::vector<Type> input_types;  // types of the full-size inputs
  std::vector<CompiledAnchor> anchors;
  std::vector<CompiledStage> stages;      // by replica, then by stage
  std::vector<std::string> tensor_names;  // names of all values that can be anchored
  std::string schedule, schedule_reason;  // for SessionReport
  std::string divided_on;                 // machineOfTrials, if pass shard divided operators; otherwise empty
};

struct CompiledProgram : LoweredProgram {
  OptimizerSpec optimizer;
  std::vector<CompiledResult> results;
  std::vector<at::Tensor> host_results;  // results without a target, in order
  std::vector<WrittenArgument> written;
  std::vector<at::Tensor> constants;  // by external; undefined for other kinds. Dropped after the upload to the device
  std::vector<capture::OwnStream> own_streams;  // the program's own generators, which exist in this process only
  std::vector<ReplicaGrouping> groupings;
};

/// The first bytes of an encoded program.
inline constexpr std::string_view kProgramMagic = "ABELEPRG";
inline constexpr uint32_t kProgramVersion = 7;

/// Returns true if the program calls functions that exist in this process only.
bool callsHost(const CompiledProgram& program);

/// Returns the bytes of all fields. Equal fields give equal bytes. encode throws E0712 for a program that calls the
/// host or draws from its own generators.
/// decode throws E0501 for bytes that encode did not make. Docs: docs/executable.md.
std::string encode(const CompiledProgram& program);
CompiledProgram decodeProgram(std::string_view bytes);

}  // namespace abele::compile
