// Graphs of devices that come from outside: torch's C++ classes have them for all kinds of devices since 2.13 only, its
// Python modules before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace abele {

/// What a thread enqueues on its current stream between begin() and end(), to be enqueued again by one call.
/// Threads: one at a time.
class DeviceGraph {
 public:
  /// A pool of the device's allocator, as c10::MempoolId_t; {0, 0}: none.
  using Pool = std::pair<unsigned long long, unsigned long long>;

  virtual ~DeviceGraph() = default;
  /// pool: of the memory that kernels allocate; none: a new one. Other threads go on with the device meanwhile.
  virtual void begin(Pool pool) = 0;
  virtual void end() = 0;
  virtual void replay() = 0;
  virtual Pool pool() const = 0;
};

using DeviceGraphMaker = std::function<std::unique_ptr<DeviceGraph>()>;

/// kind: torch's name of the device, "cuda". They are taken instead of torch's own; empty: torch's again.
/// Threads: safe.
void lendDeviceGraphs(const std::string& kind, DeviceGraphMaker maker);
/// Empty: nobody lent one.   Threads: safe.
DeviceGraphMaker lentDeviceGraphs(const std::string& kind);

}  // namespace abele
