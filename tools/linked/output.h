// Shared by the commands that link to libabele: a lost output is reported.
#pragma once

#include <cstdio>
#include <iostream>

#include "abele/error.h"

/// The exit status of a command. status: its own result. If its output was not written, prints E0901 and returns 1.
inline int statusOfWritten(int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.flush()) return status;
  const abele::UserError lost(abele::ErrorCode::E0901, {.what = "standard output cannot be written",
                                                        .remedy = "write to a disk with space, or an open pipe"});
  std::cerr << lost.what() << "\n";
  return 1;
}
