// The .abx format: docs/executable.md. One description of the fields serves both directions.
#include "base/error.h"
#include "exe/executable.h"
#include "exe/fields.h"

namespace abele::exe {

std::string encode(const Executable& executable) {
  Writer payload;
  // visit() takes no const because it serves both directions; a Writer changes nothing.
  visit(payload, const_cast<Executable&>(executable));
  return seal(kExecutableMagic, kExecutableVersion, payload.take());
}

Executable decode(const std::string& bytes) {
  Reader reader(unseal(kExecutableMagic, kExecutableVersion, bytes, "an Abele executable"));
  Executable executable;
  visit(reader, executable);
  if (!reader.atEnd()) reject("bytes after the end");
  const auto findings = verify(executable);
  if (!findings.empty()) reject(cat("an executable with ", findings.size(), " contradictions"), findings.front());
  return executable;
}

}  // namespace abele::exe
