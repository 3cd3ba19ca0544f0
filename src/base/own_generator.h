// The stream of random numbers that an operator draws from.
#pragma once

#include <cstdint>
#include <vector>

#include "base/arg.h"

namespace abele {

/// Arg::i of a generator argument: 0 is the device's stream, k > 0 is generator k of the user's program
/// (capture::OwnStream).
inline int64_t ownGenerator(const std::vector<Arg>& args) {
  for (const Arg& arg : args)
    if (arg.kind == Arg::Kind::kGenerator) return arg.i;
  return 0;
}

}  // namespace abele
