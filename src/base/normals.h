// Normal numbers that a generator of the host draws one at a time, and the spare among them.
#pragma once

#include <cstdint>

namespace abele {

/// Torch makes two normal numbers at once, of four 32-bit draws, and keeps the second one, the spare, in the generator:
/// who asks next takes it and draws nothing. So the draws of normal numbers follow from how many came before them and
/// from whether the generator had a spare when the step began. The numbers of draws beside (`random_draws`,
/// `random_offset`) leave them out.
struct Normals {
  int64_t count = 0;   // that an operator, or a micro-batch, draws
  int64_t before = 0;  // of the micro-batch before the operator
  /// Where the pair ends whose second number is the spare that the operator finds, or the micro-batch leaves: draws of
  /// the micro-batch before that end; 0 or less: in the micro-batch before. Of operators with a count.
  int64_t spare = 0;
  bool operator==(const Normals&) const = default;
};

/// 32-bit draws of so many normal numbers.
inline int64_t drawsOfNormals(int64_t normals, bool from_spare) { return (normals + (from_spare ? 0 : 1)) / 2 * 4; }
/// Does the generator have a spare after so many?
inline bool leavesSpare(int64_t normals, bool from_spare) { return (normals % 2 != 0) != from_spare; }

}  // namespace abele
