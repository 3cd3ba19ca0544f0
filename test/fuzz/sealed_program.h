// Files of programs with their insides sealed anew (sealed.h).
#pragma once

#include "compile/compiled_program.h"
#include "exe/fields.h"
#include "sealed.h"

namespace abele::test {

/// Of fields of a compiled program: its first is the executable.
inline void resealExecutable(char* fields, size_t size) {
  size_t at = 0;
  const auto [executable, length] = nextString(fields, size, at);
  if (executable) reseal(executable, length, exe::kExecutableMagic, exe::kExecutableVersion);
}

/// Of fields of a program file: the fourth is the compiled program.
inline void resealProgram(char* fields, size_t size) {
  size_t at = 0;
  for (int before = 0; before < 3; ++before)
    if (!nextString(fields, size, at).first) return;
  const auto [program, length] = nextString(fields, size, at);
  if (!program || length < kHeaderBytes + kIdentityBytes) return;
  resealExecutable(program + kHeaderBytes, length - kHeaderBytes - kIdentityBytes);
  reseal(program, length, compile::kProgramMagic.data(), compile::kProgramVersion);
}

}  // namespace abele::test
