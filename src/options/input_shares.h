// The part of the inputs that a process takes if the replicas of a model, or their stages, are in several processes.
#pragma once

#include <cstdint>

#include "abele/options.h"

namespace abele::options {

struct InputShares {
  int64_t replicas = 1;   // replicas of this process
  int64_t processes = 1;  // consecutive processes that hold the stages of a replica together and take the same part
  int64_t count = 1;      // number of different parts
  int64_t own = 0;        // index of this process's part
};

/// replicationFactor counts the replicas of all processes with devicesPerProcess, and those of this process without it.
InputShares inputSharesOf(const Options::Values& values);

/// A contiguous block of the samples of a data set, or of a shuffled order that all processes share.
struct SampleBlock {
  int64_t begin = 0, length = 0;
  int64_t left_out = 0;  // samples that no process takes
};

/// With drop_last all processes have the same number of full steps of `step` samples each; otherwise the samples are
/// divided evenly.
SampleBlock sampleBlockOf(int64_t count, int64_t processes, int64_t process, int64_t step, bool drop_last);

}  // namespace abele::options
