// .poptorch files: the parts that the Python front end puts in and takes out.
#include "host/program_file.h"
#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {

void registerProgramFile(py::module_& module) {
  using host::ProgramFile;
  using NamedTensor = std::tuple<std::string, at::Tensor, bool>;  // name, tensor, is a parameter
  py::class_<ProgramFile>(module, "ProgramFile")
      .def(py::init<>())
      .def_readwrite("version", &ProgramFile::version)
      .def_property(
          "metadata", [](const ProgramFile& self) { return py::bytes(self.metadata); },
          [](ProgramFile& self, std::string bytes) { self.metadata = std::move(bytes); })
      .def_property(
          "program", [](const ProgramFile& self) { return py::bytes(self.program); },
          [](ProgramFile& self, std::string bytes) { self.program = std::move(bytes); })
      .def_readwrite("has_model", &ProgramFile::has_model)
      .def_readwrite("optimizer_state", &ProgramFile::optimizer_state)
      .def_property(
          "tensors",
          [](const ProgramFile& self) {
            std::vector<NamedTensor> tensors;
            for (const host::SavedTensor& saved : self.tensors)
              tensors.emplace_back(saved.name, saved.tensor, saved.is_parameter);
            return tensors;
          },
          [](ProgramFile& self, const std::vector<NamedTensor>& tensors) {
            self.tensors.clear();
            for (const auto& [name, tensor, is_parameter] : tensors)
              self.tensors.push_back({name, tensor, is_parameter});
          })
      .def_property(
          "rng_state",
          [](const ProgramFile& self) -> py::object {
            return self.rng_state.defined() ? py::cast(self.rng_state) : py::none();
          },
          [](ProgramFile& self, const at::Tensor& state) { self.rng_state = state; })
      .def(
          "write", [](const ProgramFile& self, const std::string& path) { host::writeProgramFile(path, self); },
          py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def_static("read", &host::readProgramFile, py::arg("path"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace abele::bind
