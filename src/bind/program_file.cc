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
namespace {

using files::ProgramFile;

template <std::string ProgramFile::*field>
py::bytes asBytes(const ProgramFile& self) {
  return py::bytes(self.*field);
}
template <std::string ProgramFile::*field>
void takeBytes(ProgramFile& self, std::string bytes) {
  self.*field = std::move(bytes);
}

}  // namespace

void registerProgramFile(py::module_& module) {
  py::class_<ProgramFile>(module, "ProgramFile")
      .def_readwrite("version", &ProgramFile::version)
      .def_readwrite("options", &ProgramFile::options)
      .def_property("metadata", asBytes<&ProgramFile::metadata>, takeBytes<&ProgramFile::metadata>)
      .def_property("objects", asBytes<&ProgramFile::objects>, takeBytes<&ProgramFile::objects>)
      .def_property("program", asBytes<&ProgramFile::program>, takeBytes<&ProgramFile::program>)
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
            std::vector<TensorRow> tensors;
            const compile::CompiledProgram program = compile::decodeProgram(self.program);
            for (const modules::NamedTensor& t : model::tensorsOfParts(program.executable, parts))
              tensors.emplace_back(t.name, t.tensor, t.is_parameter);
            return tensors;
          },
          py::arg("parts"), "Those of its parts, on the meta device.")
      .def_property_readonly("tensors",
                             [](const ProgramFile& self) {
                               std::vector<TensorRow> tensors;
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
        return py::bytes(withoutGil([&] { return readWholeFile(path, magic, most_bytes); }));
      },
      py::arg("path"), py::arg("magic"), py::arg("most_bytes"));
}

}  // namespace abele::bind
