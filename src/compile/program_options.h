// The user's options in the form that the compiler and the devices need, as plain data. from_options.cc makes it, for
// C++ programs and for Python's.
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

namespace abele::compile {

/// The index of this process, and the processes of the program.
struct ProcessOptions {
  int64_t index = 0;
  int64_t count = 1;
  int64_t on_host = 1;          // processes on this host; they share its cores
  int cores = 0;                // cores for a replica, on which all processes agreed; 0: this process's cores
  int64_t devices = 0;          // devices of each process; 0: the number that its replicas need
  int64_t stages = 1;           // number of consecutive processes that hold the stages of one replica
  std::string group = "abele";  // name of their process group in c10d's registry
};

/// See report/profile.h.
struct ProfileOptions {
  std::string path;  // path of the file; empty: none is written
  int64_t runs = 2;  // records this number of runs, from the first on
};

enum class OutputMode { kFinal, kEveryN, kAll, kSum };
/// Which processes of a replica get its results; kOwner: each result is in the process that makes it.
enum class OutputRank : uint8_t { kAll, kFirst, kLast, kOwner };
enum class Strategy { kPipelined, kSharded };
/// Generated inputs that calls read instead of their arguments; kUniform: from 0 to 1. Integers are zeros, which are
/// valid as indices. The numbers are PopART's.
enum class SyntheticData : uint8_t { kOff, kZeros, kNormal, kUniform };

/// Whether forward is captured a second time on the same inputs and random numbers. If the two programs differ, kWarns
/// warns and kRequires throws E0101.
enum class CaptureCheck : uint8_t { kOff, kWarns, kRequires };

/// Which instructions are joined to save passes over memory. kExact: only joins that keep every bit of the results.
enum class Fusion : uint8_t { kOff, kExact, kFast };

/// How the schedule is chosen: kGiven takes ProgramOptions::schedule. kFastest takes the one with the shortest
/// predicted step. kDefault takes 1F1B, or one that is predicted to be noticeably faster in no more memory
/// (docs/schedules.md).
enum class ScheduleRule : uint8_t { kGiven, kFastest, kDefault };

/// A value inside the program that each call returns, apart from its results.
struct Anchor {
  std::string short_name;
  std::string long_name;  // one of Session::tensorNames()
  OutputMode mode = OutputMode::kAll;
  int64_t period = 1;
};

/// The fields are the rows of program_options.def. Each row says whether the compiled program depends on the field.
struct ProgramOptions {
#define ABELE_OPTION(type, name, ...) type name = __VA_ARGS__;
#include "compile/program_options.def"
};

/// The device's optimizer. Hyper-parameters are listed by group, under the names of device/backend.h.
struct OptimizerSpec {
  passes::OptimizerRules rules;
  std::vector<std::map<std::string, double>> groups;
  /// Factor of the loss for backward, which keeps float16 gradients in range. Updates divide by it.
  double loss_scaling = 1;
};

/// The device that the program is captured on. Throws E0702 if it does not exist.
c10::Device captureDevice(const ProgramOptions& options);
/// Throws E0702 for values out of range, E0711 for options that several processes do not support.
void checkOptions(const ProgramOptions& options);
/// Throws E0711 for options that a program with blocks over several devices cannot have yet.
void checkDivision(const ProgramOptions& options);
/// The options with which several devices cannot take micro-batches in turn yet; empty if they can.
std::string whyNotInTurn(const ProgramOptions& options);
/// Cores of this machine for the devices of one replica, at least 1.
int coresOfReplica(const ProgramOptions& options);
/// Number of processes that have replicas of their own; consecutive processes that hold one replica count once.
int64_t replicaProcesses(const ProgramOptions& options);
/// Number of devices of one replica in each process, if a replica spans several processes; otherwise 0.
int64_t devicesOfReplicaHere(const ProgramOptions& options);
/// Intra-op threads of each device if the process has this number of devices.
int threadsPerDevice(const ProgramOptions& options, int64_t devices);
/// Number of replicas in all processes.
int64_t totalReplicas(const ProgramOptions& options);
/// Number of micro-batches that the inputs of one call are split into.
int64_t inputMicroBatches(const ProgramOptions& options);
/// Number of micro-batches that can be in progress at once: those of an update, or of a call that predicts.
int64_t microBatchesInWork(const ProgramOptions& options);
/// Number of runtime steps in a call: 1, or with automatic loss scaling one for each update, because it checks the
/// gradients of an update before the next one starts.
int64_t stepsPerCall(const ProgramOptions& options);

}  // namespace abele::compile
