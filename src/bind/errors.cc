// The one exception translator: abele::Error -> the classes of poptorch._errors, with PopTorch's fields.
#include "base/error.h"
#include "base/nearest.h"

#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

void raise(const char* kind, const Error& error, const std::string& recovery_action) {
  // The context is a field of its own in Python.
  const std::string text = UserError(error.code(), error.message()).what();
  py::object make = py::module_::import("poptorch._errors").attr("createNativeError");
  py::object value = make(kind, errorCodeText(error.code()), text, error.context(), recovery_action);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const UserError& error) {
    raise("user", error, {});
  } catch (const DeviceError& error) {
    raise(error.recoveryAction().empty() ? "unrecoverable" : "recoverable", error, error.recoveryAction());
  } catch (const Error& error) {
    raise("internal", error, {});
  }
}

}  // namespace

void registerErrors(py::module_& module) {
  py::register_exception_translator(translate);
  module.def("didYouMean", didYouMean, py::arg("name"), py::arg("known"), py::arg("otherwise"));
}

}  // namespace abele::bind
