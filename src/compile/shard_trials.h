// Tries on this machine whether the parts of an operator have the bits of the whole one. Used by lowering.cc, for pass
// shard.
#pragma once

#include "ir/graph.h"

namespace abele::compile {

/// The answer of passes::PassContext::gives_same_bits for devices with this number of intra-op threads. Random inputs
/// decide: each graph runs on them, node by node, with the kernels that devices call. False for a graph that ATen
/// refuses, and for one whose results have other types or strides than it says. Answers are kept for the process. False
/// for all graphs if ABELE_SHARD_TRIALS is "fail". Torch's default random stream stays where it is. Threads: safe.
bool givesSameBits(const ir::Graph& whole, const ir::Graph& parts, int threads);

}  // namespace abele::compile
