// The only translator of exceptions: abele::Error -> an exception that Python makes from its fields. The factory that
// Python registers chooses the class.
#include "base/error.h"
#include "base/nearest.h"

#include "bind/bind.h"
#include "options/store.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

// By options::Refused: the exception of Python that callers expect in addition to abele.Error.
constexpr const char* kRefusedInPython[] = {"",          "AssertionError", "ValueError",
                                            "TypeError", "AttributeError", "IncompatibleIPUConfigError"};

// Makes an exception; nullptr until Python registers it. Guarded by the GIL. Never released, because errors may occur
// until the interpreter has ended.
PyObject* error_factory = nullptr;

/// Decodes a message. It may hold names with bytes that are not valid text.
py::str decoded(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

void raise(const char* kind, const Error& error, const std::string& recovery_action) {
  if (error_factory == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return;
  }
  // Python keeps the context in a separate field.
  const std::string text = UserError(error.code(), error.message()).what();
  auto make = py::reinterpret_borrow<py::object>(error_factory);
  py::object value = make(kind, errorCodeText(error.code()), decoded(text), decoded(error.context()), recovery_action);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const options::OptionError& error) {
    raise(cat("option ", kRefusedInPython[static_cast<int>(error.refused())]).c_str(), error, {});
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
  module.def(
      "setErrorFactory", [](py::object make) { Py_XSETREF(error_factory, make.release().ptr()); }, py::arg("make"));
  py::dict names;
#define ABELE_ERROR(code, name, summary) names[#code] = name;
#include "abele/errors.def"
#undef ABELE_ERROR
  module.attr("error_names") = names;
  module.def("didYouMean", didYouMean, py::arg("name"), py::arg("known"), py::arg("otherwise"));
}

}  // namespace abele::bind
