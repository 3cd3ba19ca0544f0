// What the commands over libabele share: no result is lost without a word.
#pragma once

#include <cstdio>
#include <iostream>

#include "abele/error.h"

/// The exit status of a command. status: what it has found. Prints E0901 and gives 1 where its output was not written.
inline int statusOfWritten(int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.flush()) return status;
  const abele::UserError lost(abele::ErrorCode::E0901, {.what = "standard output cannot be written",
                                                        .remedy = "write to a disk with space, or an open pipe"});
  std::cerr << lost.what() << "\n";
  return 1;
}
