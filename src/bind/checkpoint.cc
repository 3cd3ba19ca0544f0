// Checkpoints: the parts that the Python front end adds and reads.
#include "files/checkpoint.h"

#include "bind/bind.h"
#include "bind/gil.h"
#include "files/tensor_file.h"
#include "optimizer/optimizer_numbers.h"

namespace py = pybind11;

namespace abele::bind {

void registerCheckpoint(py::module_& module) {
  using files::Checkpoint;
  py::class_<Checkpoint>(module, "Checkpoint")
      .def(py::init<>())
      .def_readwrite("step", &Checkpoint::step)
      .def_property_readonly("shapes",
                             [](const Checkpoint& self) {
                               std::map<std::string, std::vector<int64_t>> shapes;
                               for (const auto& [name, tensor] : self.weights) shapes.emplace(name, tensor.type.sizes);
                               return shapes;
                             })
      .def_readwrite("texts", &Checkpoint::texts)
      .def_readwrite("tensors", &Checkpoint::tensors)
      .def_property_readonly("optimizer_state",
                             [](const Checkpoint& self) {
                               std::map<std::string, at::Tensor> state;
                               for (const auto& [name, tensor] : self.state.optimizer_state)
                                 state.emplace(name, tensor.read());
                               return state;
                             })
      .def(
          "write",
          [](const Checkpoint& self, const std::string& folder, int64_t keep) {
            return py::bytes(withoutGil([&] { return files::writeCheckpoint(folder, self, keep); }));
          },
          py::arg("folder"), py::arg("keep"))
      .def_static("read", &files::readCheckpoint, py::arg("path"), py::call_guard<NoGil>());
  module.def("checkpointSteps", &files::checkpointSteps, py::arg("folder"));
  module.def(
      "checkpointPath",
      [](const std::string& folder, int64_t step) { return py::bytes(files::checkpointPath(folder, step)); },
      py::arg("folder"), py::arg("step"));
  module.def(
      "writeTensorFile",
      [](const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
        files::writeTensorFile(path, {.tensors = tensors, .metadata = {}});
      },
      py::arg("path"), py::arg("tensors"), py::call_guard<NoGil>());
  module.def(
      "readTensorFile", [](const std::string& path) { return files::readTensorFile(path).tensors; }, py::arg("path"),
      py::call_guard<NoGil>());
  module.def("textOfNumbers", &optimizer::textOfNumbers, py::arg("spec"));
  module.def("withNumbers", &optimizer::withNumbers, py::arg("spec"), py::arg("text"));
}

}  // namespace abele::bind
