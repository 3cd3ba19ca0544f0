// What the compiler and the devices need of the user's options, as plain data. from_options.cc makes it, for C++
// programs and for Python's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "compile/replica_groups.h"
#include "exe/build/build.h"
#include "passes/pass.h"
#include "plan/memory_report.h"
#include "plan/plan.h"

namespace abele::host {

/// Which of how many processes this is.
struct ProcessOptions {
  int64_t index = 0;
  int64_t count = 1;
  int64_t on_host = 1;          // processes on this host; they share its cores
  int cores = 0;                // for a replica, as all processes agreed; 0: those of this process
  int64_t devices = 0;          // of each process; 0: as many as its replicas need
  int64_t stages = 1;           // how many consecutive processes hold the stages of one replica
  std::string group = "abele";  // name of their process group in c10d's registry
};

/// See session/profile.h.
struct ProfileOptions {
  std::string path;  // of the file; empty: none is written
  int64_t runs = 2;  // how many of the first are in it
};

enum class OutputMode { kFinal, kEveryN, kAll, kSum };
/// Which of the processes that hold the stages of a replica get its results; kOwner: each the one that makes it.
enum class OutputRank : uint8_t { kAll, kFirst, kLast, kOwner };
enum class Strategy { kPipelined, kSharded };
/// What calls read in the place of their arguments, made up once; uniform: from 0 to 1. Integers are zeros, which are
/// valid as indices. The numbers are PopART's.
enum class SyntheticData : uint8_t { kOff, kZeros, kNormal, kUniform };

/// Forward is captured a second time on the same inputs and random numbers, and both programs must be equal: otherwise
/// a warning, or E0101.
enum class CaptureCheck : uint8_t { kOff, kWarns, kRequires };

/// Which instructions are joined to save passes over memory. kExact: those whose results keep every bit.
enum class Fusion : uint8_t { kOff, kExact, kFast };

/// Who chooses the schedule: kGiven takes ProgramOptions::schedule, kFastest what is predicted to be fastest, kDefault
/// 1F1B or what is predicted to be noticeably faster in no more memory (docs/schedules.md).
enum class ScheduleRule : uint8_t { kGiven, kFastest, kDefault };

/// A value inside the program that each call also returns, apart from its results.
struct Anchor {
  std::string short_name;
  std::string long_name;  // one of Session::tensorNames()
  OutputMode mode = OutputMode::kAll;
  int64_t period = 1;
};

/// The fields are the rows of program_options.def, which says of each whether the compiled program depends on it.
struct ProgramOptions {
#define ABELE_OPTION(type, name, ...) type name = __VA_ARGS__;
#include "compile/program_options.def"
};

/// Device optimizer. Hyper-parameters by group; names as in runtime/device/backend.h.
struct OptimizerSpec {
  passes::OptimizerRules rules;
  std::vector<std::map<std::string, double>> groups;
  /// Backward starts from this many times the loss, and updates divide it out: keeps float16 gradients in range.
  double loss_scaling = 1;
};

/// The device that the program is captured and runs on. Throws E0702 for one that is not there.
c10::Device captureDevice(const ProgramOptions& options);
/// Throws E0702 for values outside their range, E0711 for options that several processes do not have.
void checkOptions(const ProgramOptions& options);
/// Cores of this machine for the devices of one replica, at least 1.
int coresOfReplica(const ProgramOptions& options);
/// How many processes, or groups of consecutive processes that hold one replica together, have replicas of their own.
int64_t replicaProcesses(const ProgramOptions& options);
/// How many devices of one replica each process has, if a replica lies in several processes; else 0.
int64_t devicesOfReplicaHere(const ProgramOptions& options);
/// Replicas of all processes.
int64_t totalReplicas(const ProgramOptions& options);
/// Micro-batches that the inputs of one call are split into.
int64_t inputMicroBatches(const ProgramOptions& options);
/// Steps of the runtime in a call. Automatic loss scaling looks at the gradients of every update before the next one
/// starts, so it takes the updates of a call one by one.
int64_t stepsPerCall(const ProgramOptions& options);

}  // namespace abele::host
