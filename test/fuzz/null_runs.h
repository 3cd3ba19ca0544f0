// What an executable calculates on the null device: symbolic contents of all it gives and keeps.
#pragma once

#include <string>

#include "base/error.h"
#include "device/null/null_backend.h"
#include "runtime/runtime.h"

namespace abele::test {

/// Of its memory and the caller's, for an executable that is run here.
inline int64_t bytesOf(const exe::Executable& executable) {
  int64_t bytes = 0, largest = 0;
  for (const exe::Group& group : executable.groups) bytes += group.frames * group.frame_bytes;
  for (const exe::Slot& slot : executable.slots)
    largest = std::max(largest, slot.type.numel() * elementBytes(slot.type.dtype));
  const auto bound = static_cast<int64_t>(executable.input_slots.size() + executable.output_slots.size());
  return bytes + largest * (4 + bound * executable.micro_batches);
}

/// Two steps; the contents of results and persistent tensors. Throws E0602 when a step does not end.
inline std::string runOnNull(const exe::Executable& executable) {
  device::NullBackend backend(executable);
  backend.enableContents();
  backend.moveOffChipMemory(true);
  runtime::Runtime runtime(executable, backend);
  std::string contents;
  const auto add = [&](const device::Bytes& bytes) {
    contents.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (int step = 0; step < 2; ++step) {
    for (size_t i = 0; i < executable.input_slots.size(); ++i) {
      if (executable.input_slots[i] < 0) continue;
      const Type& type = executable.slots[executable.input_slots[i]].type;
      for (int64_t k = 0; k < executable.micro_batches; ++k)
        backend.setInput(static_cast<int32_t>(i), static_cast<int32_t>(k),
                         device::Symbol(cat("x", i)).contents(step * 1000 + k, type.extentBytes()));
    }
    int polls = 0;
    runtime.run([&] { return ++polls > 200; });  // 50 ms each
    for (size_t t = 0; t < executable.output_slots.size(); ++t)
      for (int64_t k = 0; k < executable.micro_batches; ++k)
        add(backend.output(static_cast<int32_t>(t), static_cast<int32_t>(k)));
  }
  for (size_t e = 0; e < executable.externals.size(); ++e)
    for (int32_t r = 0; r < executable.replicas; ++r)
      if (executable.externals[e].slot >= 0) add(backend.external(static_cast<int32_t>(e), r));
  return contents;
}

}  // namespace abele::test
