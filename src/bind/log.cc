// The native log, driven by abele._logging; and what the module was built with.
#include <torch/version.h>

#include "abele/options.h"
#include "bind/bind.h"

namespace abele::bind {

void registerLog(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("setLogLevel", setLogLevel, py::arg("name"));
  module.attr("torch_version") = TORCH_VERSION;
}

}  // namespace abele::bind
