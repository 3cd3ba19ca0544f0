// The .abx format: docs/executable.md. One description of the fields serves both directions.
#include "base/error.h"
#include "exe/executable.h"
#include "exe/fields.h"

namespace abele::exe {

std::string encode(const Executable& executable) { return sealed(kExecutableMagic, kExecutableVersion, executable); }

Executable decode(const std::string& bytes) {
  auto executable = unsealed<Executable>(kExecutableMagic, kExecutableVersion, bytes, "an Abele executable");
  const auto findings = verify(executable);
  if (!findings.empty()) reject(cat("an executable with ", findings.size(), " contradictions"), findings.front());
  return executable;
}

}  // namespace abele::exe
