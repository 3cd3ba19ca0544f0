// Weights in files, and memory for tensors: in a file, or for those on the meta device.
#include "files/weight_files.h"

#include "bind/bind.h"
#include "bind/gil.h"
#include "compile/meta_tensors.h"
#include "files/offload.h"

namespace py = pybind11;

namespace abele::bind {

void registerWeights(py::module_& module) {
  using compile::Memories;
  using files::WeightFiles;
  using files::WeightTarget;
  py::class_<WeightTarget>(module, "WeightTarget")
      .def(py::init([](std::vector<std::string> names, at::Tensor tensor, bool may_be_missing) {
             return WeightTarget{std::move(names), std::move(tensor), may_be_missing};
           }),
           py::arg("names"), py::arg("tensor"), py::arg("may_be_missing"))
      .def_readonly("names", &WeightTarget::names)
      .def_readonly("tensor", &WeightTarget::tensor)
      .def_readonly("may_be_missing", &WeightTarget::may_be_missing);
  py::class_<WeightFiles, std::shared_ptr<WeightFiles>>(module, "WeightFiles")
      .def(py::init<std::string, bool>(), py::arg("path"), py::arg("convert"), py::call_guard<NoGil>())
      .def("require", &WeightFiles::require, py::arg("targets"), py::call_guard<NoGil>())
      .def("requireWhole", &WeightFiles::requireWhole, py::arg("targets"), py::call_guard<NoGil>())
      .def("fill", &WeightFiles::fill, py::arg("target"), py::call_guard<NoGil>());
  py::class_<Memories>(module, "Memories", "What giveMemory() took, for takeMemory().");
  module.def("offload", &files::offload, py::arg("tensors"), py::arg("folder"),
             "Moves the tensors of a module into a file.");
  module.def("giveMemory", &compile::giveMemory, py::arg("tensors"));
  module.def("takeMemory", &compile::takeMemory, py::arg("memories"));
}

}  // namespace abele::bind
