// Tries on this machine whether the parts of an operator compute the same bits as the whole operator. Used by
// lowering.cc, for pass shard.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "compile/program_options.h"
#include "ir/graph.h"

namespace abele::compile {

/// Computes passes::PassContext::gives_same_bits for devices like this one, with this number of intra-op threads: runs
/// both graphs on random inputs, node by node, with the kernels that devices call. False for a graph that ATen refuses,
/// or whose results have other types or strides than the graph has. Keeps results for the life of the process. False
/// for all graphs if ABELE_SHARD_TRIALS is "fail". Does not change torch's default random stream. Threads: safe.
bool givesSameBits(const ir::Graph& whole, const ir::Graph& parts, int threads, c10::Device device = at::kCPU);
/// All that the results of trials depend on, apart from graphs: the processor and its kernels, cores, threads, the
/// kind of device, the version of torch.
std::string machineOfTrials(const ProgramOptions& options);

}  // namespace abele::compile
