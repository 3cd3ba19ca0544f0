// What one compilation made, as data: an Executable and what the host has to know to run it. Held by Session, stored in
// .poptorch files and in the executable cache. No graph, no plan, no forward.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/capture.h"
#include "compile/program_options.h"
#include "exe/executable.h"

namespace abele::host {

/// One flattened result of forward.
struct CompiledResult {
  int32_t target = -1;  // of Executable::output_slots; -1: a host tensor, returned as it is
  Type type;            // of one micro-batch
};
/// An argument that forward writes into.
struct WrittenArgument {
  int32_t argument = 0;
  int32_t target = 0;
  Type type;  // of one micro-batch
};
/// A value inside the program that the host reads after each call.
struct CompiledAnchor {
  std::string name;  // the short one
  int32_t target = 0;
  Type type;             // of one micro-batch
  int32_t updated = -1;  // external whose new value it is; made once per update instead of once per micro-batch
  OutputMode mode = OutputMode::kAll;
  int64_t period = 1;
};
struct CompiledStage {
  std::string name;
  int32_t device = 0;
  int32_t worker = 0;
  int32_t replica = 0;
};

struct CompiledProgram {
  exe::Executable executable;
  OptimizerSpec optimizer;
  std::vector<Type> input_types;  // of the full-size inputs
  std::vector<CompiledResult> results;
  std::vector<at::Tensor> host_results;  // those without a target, in order
  std::vector<WrittenArgument> written;
  std::vector<CompiledAnchor> anchors;
  std::vector<at::Tensor> constants;  // by external; undefined for other kinds. Dropped once they are on the device
  std::vector<capture::OwnStream> own_streams;  // generators of the program's own, which live in this process only
  std::vector<CompiledStage> stages;            // replica after replica
  std::vector<ReplicaGrouping> groupings;
  std::vector<std::string> tensor_names;  // of every value that can be anchored
  std::string schedule, schedule_reason;  // of SessionReport
  std::string key;                        // of cacheKey: what it was made from
};

/// What the bytes of a compiled program begin with.
inline constexpr std::string_view kProgramMagic = "ABELEPRG";
inline constexpr uint32_t kProgramVersion = 5;

/// Does it call functions that exist in this process only?
bool callsHost(const CompiledProgram& program);

/// Bytes of all fields; the same fields give the same bytes. encode throws E0712 for a program that calls the host or
/// draws from generators of the program's own.
/// decode throws E0501 for anything else than what encode made. Docs: docs/executable.md.
std::string encode(const CompiledProgram& program);
CompiledProgram decodeProgram(std::string_view bytes);

}  // namespace abele::host
