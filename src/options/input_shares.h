// Which part of the inputs a process takes, where the replicas of a model, or their stages, lie in several processes.
#pragma once

#include <cstdint>

#include "abele/options.h"

namespace abele::host {

struct InputShares {
  int64_t replicas = 1;   // of this process
  int64_t processes = 1;  // that hold the stages of a replica together: consecutive ones, which take the same part
  int64_t count = 1;      // different parts
  int64_t own = 0;        // that of this process
};

/// With devicesPerProcess, replicationFactor counts the replicas of all processes, else those of this one.
InputShares inputSharesOf(const Options::Values& values);

/// A block of the samples of a data set, or of an order of them that all processes share.
struct SampleBlock {
  int64_t begin = 0, length = 0;
  int64_t left_out = 0;  // samples of no process
};

/// With drop_last all processes have the same number of full steps, of `step` samples each; else the samples are spread
/// evenly.
SampleBlock sampleBlockOf(int64_t count, int64_t processes, int64_t process, int64_t step, bool drop_last);

}  // namespace abele::host
