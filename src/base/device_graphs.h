// Recorded graphs of device work that Python implements. Torch's C++ classes support all kinds of devices only since
// 2.13; its Python modules did so earlier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace abele {

/// The work that a thread enqueues on its current stream between begin() and end(). replay() enqueues it again.
/// Threads: one at a time.
class DeviceGraph {
 public:
  /// A pool of the device's allocator, as c10::MempoolId_t; {0, 0} means no pool.
  using Pool = std::pair<unsigned long long, unsigned long long>;

  virtual ~DeviceGraph() = default;
  /// pool: where kernels allocate their memory; {0, 0} makes a new pool. Other threads may use the device meanwhile.
  virtual void begin(Pool pool) = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
  virtual Pool pool() const = 0;
};

using DeviceGraphMaker = std::function<std::unique_ptr<DeviceGraph>()>;

/// Makes graphs with this maker instead of torch's C++ classes. An empty maker restores those classes. kind: torch's
/// name of the device, "cuda".
/// Threads: safe.
void lendDeviceGraphs(const std::string& kind, DeviceGraphMaker maker);
/// The maker for this kind of device; empty if lendDeviceGraphs set none. Threads: safe.
DeviceGraphMaker lentDeviceGraphs(const std::string& kind);

}  // namespace abele
