// Normal numbers that a generator of the host draws one at a time, and the spare that it keeps.
#pragma once

#include <cstdint>

namespace abele {

/// Torch makes normal numbers in pairs, from four 32-bit draws. It keeps the second number of a pair, the spare, in the
/// generator; the next caller takes the spare and draws nothing. How many draws a normal number takes therefore depends
/// on how many normal numbers came before it, and on whether the generator had a spare when the step began.
/// `random_draws` and `random_offset` of a node do not include these draws.
struct Normals {
  int64_t count = 0;   // normal numbers that an operator, or a micro-batch, draws
  int64_t before = 0;  // normal numbers that the micro-batch draws before this operator
  /// The draws of the micro-batch up to the end of the pair whose second number is the spare: the spare that the
  /// operator takes, or that the micro-batch leaves in the generator. 0 or less: the previous micro-batch drew this
  /// pair. Unused if count is 0.
  int64_t spare = 0;
  bool operator==(const Normals&) const = default;
};

/// The number of 32-bit draws for this many normal numbers.
inline int64_t drawsOfNormals(int64_t normals, bool from_spare) { return (normals + (from_spare ? 0 : 1)) / 2 * 4; }
/// True if the generator has a spare after this many normal numbers.
inline bool leavesSpare(int64_t normals, bool from_spare) { return (normals % 2 != 0) != from_spare; }

}  // namespace abele
