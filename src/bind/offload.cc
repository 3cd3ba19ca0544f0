// Moves the tensors of a module into a file.
#include "files/offload.h"
#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {

void registerOffload(py::module_& module) {
  module.def("offload", &files::offload, py::arg("tensors"), py::arg("folder"));
}

}  // namespace abele::bind
