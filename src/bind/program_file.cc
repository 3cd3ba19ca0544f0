// .poptorch files: the parts that the Python front end adds and reads. Also reads and writes whole files.
#include "files/program_file.h"

#include "base/whole_file.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "compile/compiled_program.h"
#include "model/model.h"
#include "modules/module.h"

namespace py = pybind11;

namespace abele::bind {

void registerProgramFile(py::module_& module) {
  using files::ProgramFile;
  using NamedTensor = std::tuple<std::string, at::Tensor, bool>;  // name, tensor, is a parameter
  py::class_<ProgramFile>(module, "ProgramFile")
      .def_readwrite("version", &ProgramFile::version)
      .def_readwrite("options", &ProgramFile::options)
      .def_property(
          "metadata", [](const ProgramFile& self) { return py::bytes(self.metadata); },
          [](ProgramFile& self, std::string bytes) { self.metadata = std::move(bytes); })
      .def_property(
          "objects", [](const ProgramFile& self) { return py::bytes(self.objects); },
          [](ProgramFile& self, std::string bytes) { self.objects = std::move(bytes); })
      .def_property(
          "program", [](const ProgramFile& self) { return py::bytes(self.program); },
          [](ProgramFile& self, std::string bytes) { self.program = std::move(bytes); })
      .def_readwrite("form", &ProgramFile::form)
      .def_readwrite("result_form", &ProgramFile::result_form)
      .def_readonly("optimizer_state", &ProgramFile::optimizer_state)
      .def_readonly("parts", &ProgramFile::parts)
      .def(
          "readParts",
          [](const ProgramFile& self, const std::string& path) {
            return files::readCheckpoint(files::partsOf(path, self));
          },
          py::arg("path"), py::call_guard<NoGil>())
      .def(
          "tensorsOf",
          [](const ProgramFile& self, const files::Checkpoint& parts) {
            std::vector<NamedTensor> tensors;
            const compile::CompiledProgram program = compile::decodeProgram(self.program);
            for (const modules::NamedTensor& t : model::tensorsOfParts(program.executable, parts))
              tensors.emplace_back(t.name, t.tensor, t.is_parameter);
            return tensors;
          },
          py::arg("parts"), "Those of its parts, on the meta device.")
      .def_property_readonly("tensors",
                             [](const ProgramFile& self) {
                               std::vector<NamedTensor> tensors;
                               for (const files::SavedTensor& saved : self.tensors)
                                 tensors.emplace_back(saved.name, saved.tensor, saved.is_parameter);
                               return tensors;
                             })
      .def_property_readonly("rng_state",
                             [](const ProgramFile& self) -> py::object {
                               return self.rng_state.defined() ? py::cast(self.rng_state) : py::none();
                             })
      .def(
          "write", [](const ProgramFile& self, const std::string& path) { files::writeProgramFile(path, self); },
          py::arg("path"), py::call_guard<NoGil>())
      .def_static("read", &files::readProgramFile, py::arg("path"), py::call_guard<NoGil>());

  module.def(
      "fileToSave", [](const std::string& path) { return py::bytes(files::fileToSave(path)); }, py::arg("path"),
      "The file that save() writes for this path, as bytes.");
  // Paths are bytes, because file names need not be valid text.
  module.attr("MOST_TEXT_BYTES") = kMostTextBytes;
  module.def(
      "writeWholeFile", [](const std::string& path, const std::string& bytes) { writeWholeFile(path, bytes); },
      py::arg("path"), py::arg("bytes"), py::call_guard<NoGil>());
  module.def(
      "readWholeFile",
      [](const std::string& path, const std::string& magic, int64_t most_bytes) {
        std::string bytes;
        {
          const NoGil no_gil;
          bytes = readWholeFile(path, magic, most_bytes);
        }
        return py::bytes(bytes);
      },
      py::arg("path"), py::arg("magic"), py::arg("most_bytes"));
}

}  // namespace abele::bind
