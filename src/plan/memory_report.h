// What the bytes of a plan are for: by device, by lifetime class, by layer, and the largest tensors. The numbers add up
// to peakDeviceBytes(), which is what a run uses. Docs: docs/memory.md.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

enum class MemoryClass : uint8_t {
  kWeights,
  kOptimizerState,
  kAccumulators,
  kConstants,
  kStash,
  kTransient,
  kReceived
};
inline constexpr size_t kNumMemoryClasses = 7;
/// "weights", "optimizer state", "accumulators", "constants and buffers", "stash", "transient", "received".
const char* memoryClassName(MemoryClass memory_class);
using BytesByClass = std::array<int64_t, kNumMemoryClasses>;

/// One piece of memory and what lives in it. Stash and transient memory is reused, so these do not add up.
struct TensorMemory {
  std::string name;  // the user's, or the operator that makes it
  Type type;
  MemoryClass memory_class = MemoryClass::kTransient;
  int32_t stage = 0;
  int64_t frames = 1;  // copies that the device holds: of a stash, one for every micro-batch in work
  int64_t bytes = 0;   // of all frames, aligned
  std::string layer;   // module path, else the user's block; "" = neither
  std::string source;  // "train.py:88": made here, or first used; "" where no line is
};

/// Reused memory counts for the largest tensor that lives in it, so layers add up to the device's bytes.
struct LayerMemory {
  std::string layer;
  BytesByClass bytes{};
  int64_t total() const;
};

struct DeviceMemory {
  int device = 0;
  int64_t peak_bytes = 0;  // the sum of by_class; of what is off chip, that which is fetched at the fullest moment
  BytesByClass by_class{};
  int64_t off_chip_bytes = 0;         // of its stages, on the device or not
  std::vector<LayerMemory> layers;    // in order of the program
  std::vector<TensorMemory> tensors;  // the largest, largest first
};

struct MemoryReport {
  std::vector<DeviceMemory> devices;  // by worker of one replica
};

/// Requires: the plan was made of this graph.
MemoryReport reportMemory(const ir::Graph& graph, const Plan& plan, size_t num_tensors = 10);
/// For people: a few lines a device.
std::string memoryText(const MemoryReport& report);
/// One object; keys in docs/memory.md.
std::string memoryJson(const MemoryReport& report);
/// "h.2/attention: aten::gelu -> f32[8,64] (train.py:88), stash, 4 frames, 8192 bytes".
std::string describe(const TensorMemory& tensor);

/// Bytes that a device has. -1: no limit.
struct MemoryLimits {
  int64_t every = -1;
  std::map<int, int64_t> of_device = {};  // where it differs
  int64_t of(int device) const {
    auto it = of_device.find(device);
    return it == of_device.end() ? every : it->second;
  }
  /// Bytes that a device has to spare beside this many; negative: what it lacks. The largest number there is where it
  /// has no limit.
  int64_t spare(int device, int64_t bytes) const {
    const int64_t limit = of(device);
    return limit < 0 ? std::numeric_limits<int64_t>::max() : limit - bytes;
  }
  bool any() const { return every >= 0 || !of_device.empty(); }
  bool operator==(const MemoryLimits&) const = default;
};

/// The least that a device has to spare (MemoryLimits::spare). devices, peak_bytes: by worker.
int64_t spareBytes(const std::vector<int>& devices, const std::vector<int64_t>& peak_bytes, const MemoryLimits& limits);

}  // namespace abele::plan
