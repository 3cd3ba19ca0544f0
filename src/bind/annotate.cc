// Marks that a running forward sets: blocks, losses, names.
#include "capture/annotate.h"

#include <ATen/core/Tensor.h>

#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {

void registerAnnotate(py::module_& module) {
  module.def("isCapturing", &capture::isCapturing);
  module.def("beginBlock", &capture::beginBlock, py::arg("user_id"), py::arg("devices"));
  module.def("endBlock", &capture::endBlock);
  module.def("nextAutoBlockId", &capture::nextAutoBlockId);
  module.def("resetAutoBlockId", &capture::resetAutoBlockId);
  module.def("pushScope", &capture::pushScope, py::arg("name"));
  module.def("popScope", &capture::popScope);
  module.def("readValue", &capture::readValue, py::arg("tensor"), py::arg("reader"));
  module.attr("LOCKED_READ") = capture::kLockedRead;
  module.def("mayVary", &capture::mayVary, py::arg("tensor"));
  module.def("allowReads", &capture::allowReads, py::arg("allow"));
  module.def("valueId", &capture::valueId, py::arg("tensor"));
  module.def("replaceBuffer", &capture::replaceBuffer, py::arg("buffer"), py::arg("value"), py::arg("keeps_strides"));
  module.def("isReadAfterWrite", &capture::isReadAfterWrite, py::arg("read"), py::arg("written"));
  module.def("keepValue", &capture::keepValue, py::arg("tensor"));
  module.def("isTraining", &capture::isTraining);
  module.def("constantDifference", &capture::constantDifference, py::arg("start"), py::arg("stop"));
  module.def("numOperators", &capture::numOperators, py::arg("part"));
  module.def("numReaders", &capture::numReaders, py::arg("tensor"));
  module.def("isCaptured", &capture::isCaptured, py::arg("tensor"));
  module.def("isArgument", &capture::isArgument, py::arg("tensor"));
  module.def("markLoss", &capture::markLoss, py::arg("loss"));
}

}  // namespace abele::bind
