// Attaching: a model gets ids of devices, and other processes see which devices it has.
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

/// The devices that a model wants to attach.
struct Request {
  int64_t num_devices = 1;
  /// The devices form one of deviceGroups(), of the size that PopTorch would reserve. If false, any neighbours will do.
  bool in_groups = false;
  std::optional<int64_t> group;  // this group of deviceGroups(), which is large enough
  bool is_training = false;
  std::string model;                 // name of the model, for people
  std::vector<std::string> targets;  // kinds of its devices, "cuda:0", repeated for further devices. Empty: cpu
};

/// Users of one device: models of other processes, and models of this process.
struct DeviceUsers {
  int64_t others = 0, own = 0;
};
/// The first of the devices that a model gets. Free devices come first, then those with the fewest other users, then
/// those with the lowest ids. needs_free: take only devices that no other process has. Returns nothing if there are no
/// such devices. users: by id; devices past its end are free.
std::optional<int64_t> firstDevice(const Request& request, const std::vector<DeviceUsers>& users, bool needs_free);

/// The devices of a model. Emulated devices can be shared, so a model always gets some; free ones are taken first.
/// With ABELE_EXCLUSIVE_DEVICES a model gets only devices that no other process has.
/// Threads: one caller at a time. In a forked child it does nothing, because the devices are the parent's.
class Attachment {
 public:
  /// Throws E0402 if exclusive devices are wanted and all are in use, or their users cannot be read. With
  /// POPTORCH_WAIT_FOR_IPU it waits until some are free. poll: called while waiting; if it returns true the wait ends
  /// (E0602), and what it throws is passed on.
  explicit Attachment(Request request, const std::function<bool()>& poll = {});
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  const Request& request() const { return request_; }
  void beginStep();
  /// busy_ns: the time that each device computed in this step. completed: the step ended without an error.
  void endStep(std::span<const int64_t> busy_ns, bool completed);
  /// This attachment as other processes see it.
  Attached attached() const;

 private:
  Request request_;
  Home home_;
  RecordFile file_;
  std::vector<std::byte> private_;  // the record, if no file can be made
  RecordWriter writer_;
  int64_t looked_ns_ = 0;  // time of the last check that the file exists
};

/// All models that have devices now, by their first device. Covers all processes and all users whose registries can be
/// read.
std::vector<Attached> attached();
/// "alice"; the number if the user has no name.
std::string userName(int64_t user_id);

}  // namespace abele::registry
