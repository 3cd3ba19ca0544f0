#include "calls/devices.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>

#include <sched.h>

#include "abele/model.h"
#include "base/error.h"
#include "compile/from_options.h"
#include "options/notes.h"
#include "registry/devices.h"

namespace abele {
namespace calls {
namespace {

using registry::DeviceGroup;
using registry::deviceGroups;
using registry::numDevices;

constexpr int64_t kVersion = 2;

DeviceGroup groupOf(int64_t id) {
  const std::vector<DeviceGroup> groups = deviceGroups();
  const auto count = static_cast<int64_t>(groups.size());
  ABELE_REQUIRE(id >= 0 && id < count, E0402,
                {.what = cat("there is no device group with id ", id), .expected = cat("an id in 0..", count - 1)});
  return groups[static_cast<size_t>(id)];
}

/// The number of devices to reserve for a program.
int64_t reserved(const Policy& policy, const Options::Values& values, const std::vector<int>& stage_devices) {
  const auto replicas = values.get<int64_t>("replication_factor");
  const int64_t used =
      std::max<int64_t>(static_cast<int64_t>(std::set(stage_devices.begin(), stage_devices.end()).size()),
                        *std::ranges::max_element(stage_devices) + 1);
  const int64_t number = used * replicas;
  const std::string uses =
      cat("the model uses ", number, " devices", replicas > 1 ? cat(" (", replicas, " replicas)") : "");
  ABELE_REQUIRE(number <= policy.most_devices, E0402, {.what = uses, .expected = cat("at most ", policy.most_devices)});
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(number)));
  if (rounded == number) return number;
  ABELE_REQUIRE(values.get<bool>("auto_round_num_ipus"), E0402,
                {.what = uses,
                 .expected = "a power of two",
                 .remedy = "opts.autoRoundNumIPUs(True) reserves more devices than the model uses"});
  options::note(log::Level::kWarn,
                cat("the model uses ", number, " devices; ", rounded, " are reserved (autoRoundNumIPUs)"));
  return rounded;
}

void requireNumber(const Options::Values& values, int64_t number) {
  if (values.get<ConnectionType>("connection_type") == ConnectionType::kNever || compile::usesModel(values)) return;
  ABELE_REQUIRE(number <= numDevices(), E0402,
                {.what = cat("the model uses ", number, " devices"),
                 .expected = cat("at most ", numDevices(), " (ABELE_EMULATED_DEVICES)")});
}

/// Throws if the group that useIpuId chooses has fewer devices than the program uses.
void requireGroup(const Options::Values& values, int64_t number) {
  const auto id = values.get<std::optional<int64_t>>("ipu_id");
  if (!id) return;
  const int64_t size = groupOf(*id).count;
  ABELE_REQUIRE(size >= number, E0402,
                {.what = cat("the device group ", *id, " is too small"),
                 .found = cat(size, " devices"),
                 .expected = cat(number, " devices or more"),
                 .remedy = "opts.useIpuId of a larger group, or leave the choice to poptorch"});
  if (size > number)
    options::note(log::Level::kWarn, cat("device group ", *id, " has ", size, " devices, the model uses ", number));
}

}  // namespace

void requireTarget(const Options::Values& values) {
  if (const auto id = values.get<std::optional<int64_t>>("ipu_id")) groupOf(*id);
}

void requireDevices(const Policy& policy, const Options::Values& values, const std::vector<int>& stage_devices) {
  if (policy.most_devices == 0) return;
  if (!stage_devices.empty()) requireNumber(values, reserved(policy, values, stage_devices));
  const std::set<int> used(stage_devices.begin(), stage_devices.end());
  requireGroup(values, std::max<int64_t>(1, static_cast<int64_t>(used.size())));
}

int64_t availableCores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int64_t devicesToSplitFor(int64_t cores, const Options::Values& values) {
  const int64_t here = values.get<int64_t>("replication_factor") *
                       compile::localProcesses(values.get<int64_t>("num_distributed_processes"));
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, cores / here))));
}

}  // namespace calls

bool ipuHardwareIsAvailable(int64_t num_ipus) {
  return !compile::simulatorIsChosen() && num_ipus <= registry::numDevices();
}
int64_t ipuHardwareVersion() {
  ABELE_REQUIRE(registry::numDevices() > 0, E0402, {.what = "no devices: ABELE_EMULATED_DEVICES is 0"});
  return calls::kVersion;
}

}  // namespace abele
