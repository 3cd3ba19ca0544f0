// The user's current line and modules, cheap enough to be asked for at every recorded operation: only frames are
// walked, and whether a code object belongs to the user is decided once per code object.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "bind/bind.h"
#include "bind/gil.h"
#include "capture/annotate.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

/// Calls visit(frame, its code) from the innermost frame outwards, until it returns true. Requires: the GIL.
template <class Visit>
void visitFrames(const Visit& visit) {
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    if (visit(raw, code)) return;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
}

class Locator {
 public:
  explicit Locator(std::vector<std::string> excludes) : excludes_(std::move(excludes)) {}
  ~Locator() {
    if (isEnding()) {
      new auto(std::move(files_));  // leaks it: Python's objects must not be released any more
      return;
    }
    const py::gil_scoped_acquire gil;
    files_.clear();
  }

  std::string operator()() {
    const WithGil gil;
    std::string line;
    visitFrames([&](PyFrameObject* frame, const py::object& code) {
      const std::string& file = userFile(code);
      if (!file.empty()) line = file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      return !file.empty();
    });
    return line;
  }

 private:
  struct File {
    py::object code;   // kept alive, so that its address is not reused
    std::string name;  // "" for code that is not the user's
  };

  const std::string& userFile(const py::object& code) {
    auto [it, is_new] = files_.try_emplace(code.ptr());
    if (is_new) {
      it->second.code = code;
      auto path = code.attr("co_filename").cast<std::string>();
      bool excluded = path.starts_with("<frozen");
      for (const std::string& part : excludes_) excluded = excluded || path.find(part) != std::string::npos;
      if (!excluded) it->second.name = path.substr(path.find_last_of('/') + 1);
    }
    return it->second.name;
  }

  std::vector<std::string> excludes_;
  std::unordered_map<PyObject*, File> files_;  // guarded by the GIL
};

/// Which of a model's modules the current thread is inside of, by the frames of torch's own call of a module: hooks of
/// modules would be there for all threads.
class ModuleNames {
 public:
  /// names: by id(); call: the code of torch.nn.Module._wrapped_call_impl, which has few variables beside `self`;
  /// outermost: the code below which no module is asked for.
  ModuleNames(py::dict names, py::object call, py::object outermost)
      : names_(std::move(names)), call_(std::move(call)), outermost_(std::move(outermost)) {}

  std::vector<std::string> operator()() const {
    const WithGil gil;
    std::vector<std::string> found;
    visitFrames([&](PyFrameObject* frame, const py::object& code) {
      if (code.is(outermost_)) return true;
      if (code.is(call_)) add(frame, found);
      return false;
    });
    std::ranges::reverse(found);
    return found;
  }

 private:
  void add(PyFrameObject* frame, std::vector<std::string>& found) const {
    const auto locals = py::reinterpret_steal<py::dict>(PyFrame_GetLocals(frame));
    PyObject* const module = locals ? PyDict_GetItemString(locals.ptr(), "self") : nullptr;
    if (module == nullptr) return PyErr_Clear();
    const py::int_ id(reinterpret_cast<uintptr_t>(module));
    if (PyObject* const name = PyDict_GetItem(names_.ptr(), id.ptr()))
      found.push_back(py::reinterpret_borrow<py::object>(name).cast<std::string>());
  }

  py::dict names_;
  py::object call_, outermost_;
};

}  // namespace

void registerModuleNames(py::module_& module) {
  module.def(
      "setModules",
      [](py::dict names, py::object call, py::object outermost) {
        capture::setModules(ModuleNames(std::move(names), std::move(call), std::move(outermost)));
      },
      py::arg("names"), py::arg("call"), py::arg("outermost"));
  module.def("unsetModules", [] { capture::setModules({}); });
}

std::function<std::string()> sourceLocator(std::vector<std::string> excludes) {
  // shared, because std::function copies its target and the frames seen so far are worth keeping
  auto locator = std::make_shared<Locator>(std::move(excludes));
  return [locator] { return (*locator)(); };
}

}  // namespace abele::bind
