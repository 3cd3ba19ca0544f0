// Links between the processes of a replica, under the numbers that the executable's messages use.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

struct LinkUse {
  int64_t link = 0, from = 0, to = 0;  // processes of a replica
  int32_t from_worker = -1, to_worker = -1;
};
/// All links, in the order of their numbers.
std::vector<LinkUse> linksOf(const Executable& executable);

/// Executables number their links from 0. Adding this offset gives links of two executables different numbers, unless
/// both have the same links between the same memory spaces. All processes compute the same offset.
int64_t linkOffset(const Executable& executable);

}  // namespace abele::exe
