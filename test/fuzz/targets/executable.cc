// Fields of an executable, sealed as a writer would: refused, or run to the end inside its memory.
#include <cstdint>
#include <string_view>

#include "exe/bytes.h"
#include "exe/fields.h"
#include "null_runs.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  constexpr int64_t kMostBytes = int64_t{1} << 20, kMostActions = 1 << 12;
  try {
    const std::string_view fields(reinterpret_cast<const char*>(data), size);
    const exe::Executable executable = exe::decode(exe::seal(exe::kExecutableMagic, exe::kExecutableVersion, fields));
    ++test::taken;
    exe::print(executable);
    size_t actions = 0;
    for (const exe::WorkerProgram& worker : executable.workers) actions += worker.actions.size();
    if (test::bytesOf(executable) <= kMostBytes && actions <= kMostActions && executable.workers.size() <= 8)
      test::runOnNull(executable);
  } catch (const UserError&) {
  }
  return 0;
}
