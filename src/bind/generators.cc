// Finds torch's generators that a program can draw from: those that its module, arguments and functions hold.
#include <string_view>
#include <unordered_set>
#include <vector>

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

/// Follows references between Python objects, but not the names in classes and functions of libraries. Holds borrowed
/// references only, because no other code runs meanwhile. Threads: with the GIL.
class Walk {
 public:
  void run(PyObject* root) {
    add(root);
    while (!waiting_.empty() && seen_.size() < kMostObjects) {
      PyObject* const object = waiting_.back();
      waiting_.pop_back();
      expand(object);
    }
  }
  const std::vector<PyObject*>& found() const { return found_; }

 private:
  static constexpr size_t kMostObjects = 1'000'000;

  void add(PyObject* object) {
    if (object == nullptr || !seen_.insert(object).second) return;
    if (isOf(object, THPGeneratorClass)) found_.push_back(object);
    waiting_.push_back(object);
  }

  /// Tests the type only, because __class__ may run code of the program.
  static bool isOf(PyObject* object, PyObject* type) {
    return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type)) != 0;
  }

  static bool isLibrarys(PyObject* name) {
    if (name == nullptr || !PyUnicode_Check(name)) return true;
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) {
      PyErr_Clear();
      return true;
    }
    const std::string_view whole(text, static_cast<size_t>(size)), first = whole.substr(0, whole.find('.'));
    return first == "torch" || first == "builtins" || first == "abele" || first == "poptorch" || first == "numpy";
  }

  void expand(PyObject* object) {
    if (isOf(object, THPVariableClass) || PyModule_Check(object) || PyCode_Check(object) || PyFrame_Check(object))
      return;
    if (PyType_Check(object)) return expandClass(reinterpret_cast<PyTypeObject*>(object));
    if (PyFunction_Check(object)) return expandFunction(object);
    add(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (PyObject_IS_GC(object) && Py_TYPE(object)->tp_traverse) Py_TYPE(object)->tp_traverse(object, &visit, this);
  }

  void expandClass(PyTypeObject* type) {
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || type->tp_dict == nullptr) return;
    // The class of a wrapped module is ours and derives from the program's class.
    if (!isLibrarys(PyDict_GetItemString(type->tp_dict, "__module__"))) add(type->tp_dict);
    for (Py_ssize_t i = 0; type->tp_bases && i < PyTuple_GET_SIZE(type->tp_bases); ++i)
      add(PyTuple_GET_ITEM(type->tp_bases, i));
  }

  void expandFunction(PyObject* function) {
    add(PyFunction_GetClosure(function));
    add(PyFunction_GetDefaults(function));
    add(PyFunction_GetKwDefaults(function));
    if (isLibrarys(PyFunction_GetModule(function))) return;
    addNames(reinterpret_cast<PyCodeObject*>(PyFunction_GetCode(function)), PyFunction_GetGlobals(function));
  }

  /// The globals that code uses, and the attributes that it uses of modules among them.
  void addNames(PyCodeObject* code, PyObject* globals) {
    std::vector<PyObject*> modules;
    const auto addOf = [&](PyObject* variables) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
        PyObject* const value = PyDict_GetItem(variables, PyTuple_GET_ITEM(code->co_names, i));
        if (value && PyModule_Check(value)) modules.push_back(value);
        if (value) add(value);
      }
    };
    if (globals && PyDict_Check(globals)) addOf(globals);
    const std::vector<PyObject*> used = modules;
    for (PyObject* module : used)
      if (PyObject* const variables = PyModule_GetDict(module);
          !isLibrarys(PyDict_GetItemString(variables, "__name__")))
        addOf(variables);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i)
      if (PyObject* const inner = PyTuple_GET_ITEM(code->co_consts, i); PyCode_Check(inner))
        addNames(reinterpret_cast<PyCodeObject*>(inner), globals);
  }

  static int visit(PyObject* object, void* walk) {
    static_cast<Walk*>(walk)->add(object);
    return 0;
  }

  std::unordered_set<PyObject*> seen_;
  std::vector<PyObject*> waiting_, found_;
};

std::vector<at::Generator> generatorsOf(const py::object& root) {
  Walk walk;
  walk.run(root.ptr());
  std::vector<at::Generator> generators;
  for (PyObject* const object : walk.found()) generators.push_back(reinterpret_cast<THPGenerator*>(object)->cdata);
  return generators;
}

}  // namespace

void registerGenerators(py::module_& module) { module.def("generatorsOf", &generatorsOf, py::arg("root")); }

}  // namespace abele::bind
