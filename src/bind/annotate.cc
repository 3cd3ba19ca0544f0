// What a running forward says about itself.
#include "capture/annotate.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

/// Around reads of a tensor that a capture of another thread may have locked.
struct Opened {
  at::Tensor tensor;
  std::shared_ptr<void> memory;
};

/// Around what another thread runs for forward.
struct Work {
  std::shared_ptr<void> capture = capture::captureHere();
  std::shared_ptr<void> running;
};

/// Those of the objects whose type is one of these or derives from one: a loop in Python takes three times as long.
py::list instancesOf(const py::list& objects, const py::tuple& types) {
  py::list found;
  std::unordered_map<PyTypeObject*, bool> known;
  for (Py_ssize_t i = 0, n = PyList_GET_SIZE(objects.ptr()); i < n; ++i) {
    PyObject* const object = PyList_GET_ITEM(objects.ptr(), i);
    const auto [entry, is_new] = known.try_emplace(Py_TYPE(object), false);
    if (is_new)
      for (const py::handle type : types)
        entry->second |= PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
    if (entry->second) found.append(py::reinterpret_borrow<py::object>(object));
  }
  return found;
}

}  // namespace

void registerAnnotate(py::module_& module) {
  module.def("isCapturing", &capture::isCapturing);
  module.def("beginBlock", &capture::beginBlock, py::arg("user_id"), py::arg("ipu_id"));
  module.def("endBlock", &capture::endBlock);
  module.def("nextAutoBlockId", &capture::nextAutoBlockId);
  module.def("resetAutoBlockId", &capture::resetAutoBlockId);
  module.def("pushScope", &capture::pushScope, py::arg("name"));
  module.def("popScope", &capture::popScope);
  module.def("readValue", &capture::readValue, py::arg("tensor"), py::arg("reader"));
  py::class_<Opened>(module, "Opened")
      .def(py::init([](const at::Tensor& tensor) { return Opened{tensor, {}}; }), py::arg("tensor"))
      .def("__enter__", [](Opened& self) { self.memory = capture::openMemory(self.tensor); })
      .def("__exit__", [](Opened& self, const py::args&) { self.memory.reset(); });
  py::class_<Work>(module, "Work")
      .def(py::init<>())
      .def("__enter__", [](Work& self) { self.running = capture::workFor(self.capture); })
      .def("__exit__", [](Work& self, const py::args&) { self.running.reset(); });
  module.attr("LOCKED_READ") = capture::kLockedRead;
  module.def("mayVary", &capture::mayVary, py::arg("tensor"));
  module.def("allowReads", &capture::allowReads, py::arg("allow"));
  module.def("valueId", &capture::valueId, py::arg("tensor"));
  module.def("keepValue", &capture::keepValue, py::arg("tensor"));
  module.def("isTraining", &capture::isTraining);
  module.def("constantDifference", &capture::constantDifference, py::arg("start"), py::arg("stop"));
  module.def("numOperators", &capture::numOperators, py::arg("part"));
  module.def("numReaders", &capture::numReaders, py::arg("tensor"));
  module.def("isCaptured", &capture::isCaptured, py::arg("tensor"));
  module.def("isArgument", &capture::isArgument, py::arg("tensor"));
  // Python gives a class that is assigned __getitem__ this slot too, and takes it for a sequence from then on.
  module.def(
      "leaveSequenceProtocol",
      [](const py::type& type) { reinterpret_cast<PyTypeObject*>(type.ptr())->tp_as_sequence->sq_item = nullptr; },
      py::arg("type"));
  module.def("instancesOf", &instancesOf, py::arg("objects"), py::arg("types"));
  module.def("markLoss", &capture::markLoss, py::arg("loss"));
}

}  // namespace abele::bind
