// ProgramOptions: plain data.
#include "base/error.h"
#include "base/nearest.h"
#include "bind/bind.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerSessionOptions(py::module_& module) {
  using host::ProgramOptions;
  using host::ScheduleRule;
  py::enum_<host::OutputMode>(module, "OutputMode")
      .value("Final", host::OutputMode::kFinal)
      .value("EveryN", host::OutputMode::kEveryN)
      .value("All", host::OutputMode::kAll)
      .value("Sum", host::OutputMode::kSum);
  py::enum_<host::Strategy>(module, "Strategy")
      .value("Pipelined", host::Strategy::kPipelined)
      .value("Sharded", host::Strategy::kSharded);
  py::enum_<passes::AutoStage>(module, "AutoStage")
      .value("SameAsIpu", passes::AutoStage::kSameAsIpu)
      .value("AutoIncrement", passes::AutoStage::kAutoIncrement)
      .value("AutoSplit", passes::AutoStage::kAutoSplit);
  py::enum_<host::CommGroup>(module, "CommGroup")
      .value("All", host::CommGroup::kAll)
      .value("Consecutive", host::CommGroup::kConsecutive)
      .value("Orthogonal", host::CommGroup::kOrthogonal)
      .value("NoGrouping", host::CommGroup::kNone);
  py::class_<ProgramOptions>(module, "ProgramOptions")
      .def(py::init<>())
      .def_readwrite("training", &ProgramOptions::training)
      .def_readwrite("device_iterations", &ProgramOptions::device_iterations)
      .def_readwrite("gradient_accumulation", &ProgramOptions::gradient_accumulation)
      .def_readwrite("replicas", &ProgramOptions::replicas)
      .def_readwrite("input_group_size", &ProgramOptions::input_group_size)
      .def_readwrite("input_grouping", &ProgramOptions::input_grouping)
      .def(
          "setProcesses",
          [](ProgramOptions& self, int64_t index, int64_t count, int64_t on_host) {
            self.processes.index = index;
            self.processes.count = count;
            self.processes.on_host = on_host;
          },
          py::arg("index"), py::arg("count"), py::arg("on_host"), "Which of how many processes; and of how many here.")
      .def_readwrite("broadcast_buffers", &ProgramOptions::broadcast_buffers)
      .def_readwrite("trusts_reads", &ProgramOptions::trusts_reads)
      .def(
          "setGroupings",
          [](ProgramOptions& self, const std::vector<std::tuple<std::string, host::CommGroup, int64_t, bool>>& list) {
            self.groupings.clear();
            for (const auto& [parameter, type, shards, one_per_replica] : list)
              self.groupings.push_back({parameter, type, shards, one_per_replica});
          },
          py::arg("groupings"), "(parameter, type, replicas in a group, one value per replica) of each.")
      .def_readwrite("mean_reduction", &ProgramOptions::mean_reduction)
      .def_readwrite("output_mode", &ProgramOptions::output_mode)
      .def_readwrite("output_period", &ProgramOptions::output_period)
      .def_readwrite("strategy", &ProgramOptions::strategy)
      .def_property(
          "schedule",
          [](const ProgramOptions& self) {
            return self.schedule_rule == ScheduleRule::kFastest   ? "auto"
                   : self.schedule_rule == ScheduleRule::kDefault ? "default"
                                                                  : plan::scheduleName(self.schedule);
          },
          [](ProgramOptions& self, const std::string& name) {
            self.schedule_rule = name == "auto"      ? ScheduleRule::kFastest
                                 : name == "default" ? ScheduleRule::kDefault
                                                     : ScheduleRule::kGiven;
            const bool is_known =
                self.schedule_rule != ScheduleRule::kGiven || plan::parseSchedule(name, self.schedule);
            ABELE_REQUIRE(is_known, E0702,
                          {.what = cat("there is no schedule ", name),
                           .expected = oneOf(plan::scheduleChoices({"auto", "default"}))});
          })
      .def_readwrite("costs", &ProgramOptions::costs)
      .def_readwrite("recompute", &ProgramOptions::recompute)
      .def_readwrite("recompute_to_fit", &ProgramOptions::recompute_to_fit)
      .def(
          "setDeviceMemory",
          [](ProgramOptions& self, int64_t every, std::map<int, int64_t> of_device) {
            self.device_memory = {every, std::move(of_device)};
          },
          py::arg("every"), py::arg("of_device"), "Bytes of each device, -1: no limit; and of those that differ.")
      .def(
          "setLocations",
          [](ProgramOptions& self, const std::vector<std::pair<bool, int64_t>>& of, bool fetch_ahead) {
            ABELE_CHECK(of.size() == 4, of.size(), " locations");
            const auto at = [&of](size_t i) { return plan::TensorLocation{of[i].first, of[i].second}; };
            self.locations = {at(0), at(1), at(2), at(3), fetch_ahead};
          },
          py::arg("locations"), py::arg("fetch_ahead"),
          "(off chip?, least elements) of weights, optimizer state, accumulators and activations.")
      .def(
          "setSharding",
          [](ProgramOptions& self, std::pair<bool, int64_t> weights, std::pair<bool, int64_t> states) {
            self.sharding = {weights.first, states.first, weights.second, states.second};
          },
          py::arg("weights"), py::arg("states"),
          "(dealt to the replicas?, least elements) of weights and optimizer state.")
      .def_readwrite("off_chip_memory_limit", &ProgramOptions::off_chip_memory_limit)
      .def_readwrite("off_chip_folder", &ProgramOptions::off_chip_folder)
      .def_readwrite("enforce_pipeline_minimum", &ProgramOptions::enforce_pipeline_minimum)
      .def_readwrite("num_devices", &ProgramOptions::num_devices)
      .def_readwrite("threads_per_device", &ProgramOptions::threads_per_device)
      .def_readwrite("has_seed", &ProgramOptions::has_seed)
      .def_readwrite("seed", &ProgramOptions::seed)
      .def_readwrite("floating_point_exceptions", &ProgramOptions::floating_point_exceptions)
      .def_readwrite("stochastic_rounding", &ProgramOptions::stochastic_rounding)
      .def_readwrite("auto_loss_scaling", &ProgramOptions::auto_loss_scaling)
      .def_readwrite("loss_scale_edge", &ProgramOptions::loss_scale_edge)
      .def_readwrite("loss_scale_threshold", &ProgramOptions::loss_scale_threshold)
      .def_readwrite("loss_scale_period", &ProgramOptions::loss_scale_period)
      .def_readwrite("updatable_buffers", &ProgramOptions::updatable_buffers)
      .def_readwrite("synthetic_data", &ProgramOptions::synthetic_data)
      .def_readwrite("cache_path", &ProgramOptions::cache_path)
      .def_readwrite("share_weights", &ProgramOptions::share_weights)
      .def(
          "setWeightsOwner",
          [](ProgramOptions& self, uintptr_t id) { self.weights_owner = reinterpret_cast<const void*>(id); },
          py::arg("id"), "Sessions of one owner, which never run at once, share the model's memory.")
      .def_readwrite("initializers_path", &ProgramOptions::initializers_path)
      .def_readwrite("cache_lock", &ProgramOptions::cache_lock)
      .def(
          "addAnchor",
          [](ProgramOptions& self, std::string short_name, std::string long_name, host::OutputMode mode,
             int64_t period) { self.anchors.push_back({std::move(short_name), std::move(long_name), mode, period}); },
          py::arg("short_name"), py::arg("long_name"), py::arg("mode"), py::arg("period"))
      .def(
          "setStages",
          [](ProgramOptions& self, passes::AutoStage auto_stage, bool ordered,
             const std::vector<std::tuple<std::vector<std::string>, int, int>>& stages, bool alternating, int devices) {
            self.stages = {};
            self.stages.auto_stage = auto_stage;
            self.stages.ordered = ordered;
            self.stages.alternating = alternating;
            self.stages.devices = devices;
            for (const auto& [blocks, ipu, phase] : stages) self.stages.stages.push_back({blocks, ipu, phase});
          },
          py::arg("auto_stage"), py::arg("ordered"), py::arg("stages"), py::arg("alternating") = false,
          py::arg("devices") = 0,
          "stages: (block ids, ipu or -1, phase or -1) of an explicit list; empty: auto_stage decides. devices: for "
          "AutoSplit.");
}

}  // namespace abele::bind
