// The native log, driven by abele._logging; variables of the environment; how the module was built, and what this
// machine has.
#include <torch/version.h>

#include "abele/environment.h"
#include "abele/options.h"
#include "base/environment.h"
#include "bind/bind.h"
#include "bind/gil.h"

namespace abele::bind {

void registerLog(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("setLogLevel", setLogLevel, py::arg("name"));
  module.attr("torch_version") = TORCH_VERSION;
  module.def("environmentInteger", py::overload_cast<const char*, int64_t>(&environmentInteger), py::arg("name"),
             py::arg("fallback"), "Of a variable. Throws E0702 for text that is no integer.");
  module.def("environment", [] {
    std::vector<std::pair<std::string, std::string>> rows;
    for (EnvironmentRow& row : environment()) rows.emplace_back(std::move(row.name), std::move(row.value));
    return rows;
  });
  module.def("measureLinks", measureLinks, py::call_guard<NoGil>());
}

}  // namespace abele::bind
