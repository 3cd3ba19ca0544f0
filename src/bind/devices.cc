// The devices of this machine, and their owners.
#include <memory>
#include <utility>
#include <vector>

#include "abele/model.h"
#include "base/device_graphs.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "registry/attachment.h"
#include "registry/attributes.h"
#include "registry/devices.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

py::dict attachedDict(const registry::Attached& attached) {
  using namespace py::literals;
  py::list devices;
  for (const registry::AttachedDevice& device : attached.devices)
    devices.append(py::dict("id"_a = device.id, "target"_a = device.target,
                            "busy_s"_a = static_cast<double>(device.busy_ns) * 1e-9, "load"_a = device.load));
  return py::dict("pid"_a = attached.pid, "user"_a = registry::userName(attached.user_id),
                  "command"_a = attached.command, "model"_a = attached.model, "is_training"_a = attached.is_training,
                  "attached_s"_a = static_cast<double>(attached.attached_ns) * 1e-9, "steps"_a = attached.steps,
                  "devices"_a = devices);
}

/// A graph object of torch.cuda.CUDAGraph, or of a class like it.
class LentGraph final : public DeviceGraph {
 public:
  explicit LentGraph(py::object graph) : graph_(kept(std::move(graph))) {}

  void begin(Pool pool) override {
    const WithGil gil;
    const bool is_new = pool == Pool{0, 0};
    graph_->attr("capture_begin")(is_new ? py::none() : py::object(py::cast(pool)),
                                  py::arg("capture_error_mode") = "thread_local");
  }
  void end() override { call("capture_end"); }
  void replay() override { call("replay"); }
  Pool pool() const override {
    const WithGil gil;
    return graph_->attr("pool")().cast<Pool>();
  }

 private:
  void call(const char* method) {
    const WithGil gil;
    graph_->attr(method)();
  }
  std::shared_ptr<py::object> graph_;
};

}  // namespace

void registerDevices(py::module_& module) {
  module.def(
      "lendDeviceGraphs",
      [](const std::string& kind, py::object type) {
        if (type.is_none()) return lendDeviceGraphs(kind, nullptr);
        lendDeviceGraphs(kind, [type = kept(std::move(type))]() -> std::unique_ptr<DeviceGraph> {
          const WithGil gil;
          return std::make_unique<LentGraph>((*type)());
        });
      },
      py::arg("kind"), py::arg("type"),
      "Graphs of this kind of device instead of those of torch's C++ classes: type() has capture_begin, capture_end, "
      "replay and pool as torch.cuda.CUDAGraph. None: torch's again.");
  module.def("numDevices", registry::numDevices, "Devices that programs are told of.");
  module.def(
      "attached",
      [] {
        py::list all;
        for (const registry::Attached& attached : registry::attached()) all.append(attachedDict(attached));
        return all;
      },
      "Models that have devices now, of all processes.");
  module.def(
      "deviceAttributes",
      [] {
        const std::vector<registry::Attached> all = registry::attached();
        const std::vector<registry::DeviceGroup> groups = registry::deviceGroups();
        std::vector<py::dict> devices(groups.size());
        for (size_t number = 0; number < groups.size(); ++number)
          for (const auto& [name, value] : registry::attributesOf(number, groups[number], all))
            devices[number][name.c_str()] = value;
        return devices;
      },
      "Of each device and group of devices, by name.");
  module.def("ipuHardwareIsAvailable", ipuHardwareIsAvailable, py::arg("num_ipus"));
  module.def("ipuHardwareVersion", ipuHardwareVersion);
}

}  // namespace abele::bind
