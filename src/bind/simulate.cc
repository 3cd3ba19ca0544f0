// simulate(costs, ...): JSON in, JSON out; python/abele/_simulate.py turns both into Python objects.
#include "abele/simulate.h"

#include "bind/bind.h"
#include "bind/gil.h"
#include "options/value.h"
#include "report/model_report.h"

namespace py = pybind11;

namespace abele::bind {

void registerSimulate(py::module_& module) {
  py::enum_<Schedule> schedules(module, "Schedule");
  for (const auto& [name, schedule] : options::schedulesByName()) schedules.value(name.c_str(), schedule);
  py::class_<SimulationOptions>(module, "SimulationOptions")
      .def(py::init<>())
      .def_readwrite("schedule", &SimulationOptions::schedule)
      .def_readwrite("sharded", &SimulationOptions::sharded)
      .def_readwrite("training", &SimulationOptions::training)
      .def_readwrite("device_iterations", &SimulationOptions::device_iterations)
      .def_readwrite("gradient_accumulation", &SimulationOptions::gradient_accumulation)
      .def_readwrite("devices", &SimulationOptions::devices)
      .def_readwrite("chunks", &SimulationOptions::chunks)
      .def_readwrite("device_bytes", &SimulationOptions::device_bytes)
      .def_readwrite("bytes_of_device", &SimulationOptions::bytes_of_device)
      .def_readwrite("with_chart", &SimulationOptions::with_chart)
      .def_readwrite("with_trace", &SimulationOptions::with_trace);
  py::class_<Simulation>(module, "Simulation")
      .def_readonly("json", &Simulation::json)
      .def_readonly("chart", &Simulation::chart)
      .def_readonly("trace", &Simulation::trace);
  module.def(
      "simulationOf", [](const std::shared_ptr<session::Session>& session) { return report::simulationOf(*session); },
      py::arg("session"), "Options for simulate(): those of the program.");
  module.def("simulate", &simulate, py::arg("costs"), py::arg("options"), py::call_guard<NoGil>());
}

}  // namespace abele::bind
