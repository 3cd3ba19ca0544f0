// Reports the use of a plan's bytes: by device, by lifetime class, by layer, and the largest tensors. The numbers add
// up to peakDeviceBytes(), which is what a run uses. Docs: docs/memory.md.
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

/// One piece of memory and its contents. Stash and transient memory is reused, so the sum of these entries exceeds the
/// total.
struct TensorMemory {
  std::string name;  // the user's name, or the operator that makes it
  Type type;
  MemoryClass memory_class = MemoryClass::kTransient;
  int32_t stage = 0;
  int64_t frames = 1;  // copies that the device holds: a stash has one for every micro-batch in work
  int64_t bytes = 0;   // all frames together, aligned
  std::string layer;   // module path, or else the user's block; "" = unknown
  std::string source;  // "train.py:88": made or first used there; "" if no line is known
};

/// A reused byte counts for the largest tensor that uses it, so the layers add up to the device's bytes.
struct LayerMemory {
  std::string layer;
  BytesByClass bytes{};
  int64_t total() const;
};

struct DeviceMemory {
  int device = 0;
  int64_t peak_bytes = 0;  // sum of by_class; includes the largest number of off-chip bytes on the device at one time
  BytesByClass by_class{};
  int64_t off_chip_bytes = 0;         // all off-chip bytes of its stages, also those on the device
  std::vector<LayerMemory> layers;    // in the order of the program
  std::vector<TensorMemory> tensors;  // the largest tensors, largest first
};

struct MemoryReport {
  std::vector<DeviceMemory> devices;  // the workers of one replica
};

/// Requires: the plan was made of this graph.
MemoryReport reportMemory(const ir::Graph& graph, const Plan& plan, size_t num_tensors = 10);
/// A few lines a device, for people.
std::string memoryText(const MemoryReport& report);
/// One JSON object; docs/memory.md lists its keys.
std::string memoryJson(const MemoryReport& report);
/// Example: "h.2/attention: aten::gelu -> f32[8,64] (train.py:88), stash, 4 frames, 8192 bytes".
std::string describe(const TensorMemory& tensor);

/// The bytes that each device has. -1: no limit.
struct MemoryLimits {
  int64_t every = -1;
  std::map<int, int64_t> of_device = {};  // devices with a limit of their own
  int64_t of(int device) const {
    auto it = of_device.find(device);
    return it == of_device.end() ? every : it->second;
  }
  /// Bytes that a device has left after this many; negative if it has too few. Without a limit, the largest number.
  int64_t spare(int device, int64_t bytes) const {
    const int64_t limit = of(device);
    return limit < 0 ? std::numeric_limits<int64_t>::max() : limit - bytes;
  }
  bool any() const { return every >= 0 || !of_device.empty(); }
  bool operator==(const MemoryLimits&) const = default;
};

/// The spare bytes of the fullest device (MemoryLimits::spare). devices, peak_bytes: by worker.
int64_t spareBytes(const std::vector<int>& devices, const std::vector<int64_t>& peak_bytes, const MemoryLimits& limits);

}  // namespace abele::plan
