// The native log, driven by poptorch._logging; and what the module was built with.
#include "base/log.h"

#include <torch/version.h>

#include "base/error.h"
#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {

void registerLog(py::module_& module) {
  module.def(
      "setLogLevel",
      [](const std::string& name) {
        log::Level level = log::Level::kWarn;
        log::Detail detail = log::Detail::kNone;
        ABELE_REQUIRE(log::parseLevel(name, &level, &detail), E0702,
                      {.what = cat("log level ", name), .expected = "TRACE, DEBUG, INFO, WARN, ERR or OFF"});
        log::setLevel(level, detail);
      },
      py::arg("name"));
  module.def("setMaxRepeatedLogs", log::setMaxRepeats, py::arg("max_lines"), "Negative: no limit.");
  module.attr("torch_version") = TORCH_VERSION;
}

}  // namespace abele::bind
