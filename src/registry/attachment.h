// Attaching: a model gets ids of devices, and other processes see that it has them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fork.h"
#include "registry/record.h"
#include "registry/record_file.h"

namespace abele::registry {

/// What a model attaches.
struct Request {
  int64_t num_devices = 1;
  /// One of deviceGroups() that has them: as many as PopTorch reserves. Else any neighbours.
  bool in_groups = false;
  std::optional<int64_t> group;  // this one of deviceGroups(), which is large enough
  bool is_training = false;
  std::string model;                 // its name, for people
  std::vector<std::string> targets;  // what its devices are, "cuda:0"; the list begins again. Empty: cpu
};

/// By device: models of other processes that have it, and models of this one.
struct DeviceUsers {
  int64_t others = 0, own = 0;
};
/// The first of the devices that a model gets: free ones where there are, then those with the fewest other users, and
/// of these with the lowest ids. needs_free: devices that no other process has. Nothing: there are none. users: by id;
/// what lies behind is free.
std::optional<int64_t> firstDevice(const Request& request, const std::vector<DeviceUsers>& users, bool needs_free);

/// Devices that a model has. Emulated devices can be shared, so a model always gets some, those that nobody has first.
/// With ABELE_EXCLUSIVE_DEVICES a model gets only devices that no other process has.
/// Threads: one caller at a time. In a forked child it is nothing: the devices are the parent's.
class Attachment {
 public:
  /// Throws E0402 where exclusive devices are asked for and all are in use, or their users cannot be told. With
  /// POPTORCH_WAIT_FOR_IPU it waits until some are free. poll: asked while waiting; true ends it (E0602), and what it
  /// throws passes through.
  explicit Attachment(Request request, const std::function<bool()>& poll = {});
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  const Request& request() const { return request_; }
  void beginStep();
  /// busy_ns: by device, what it computed in this step. completed: no error ended it.
  void endStep(std::span<const int64_t> busy_ns, bool completed);
  /// As others see it.
  Attached attached() const;

 private:
  Request request_;
  Home home_;
  RecordFile file_;
  std::vector<std::byte> private_;  // the record where no file can be made
  RecordWriter writer_;
  int64_t looked_ns_ = 0;  // whether the file is still there
};

/// All models that have devices now, of all processes and users whose registries can be read, by their first device.
std::vector<Attached> attached();
/// "alice"; the number where the user has no name.
std::string userName(int64_t user_id);

}  // namespace abele::registry
