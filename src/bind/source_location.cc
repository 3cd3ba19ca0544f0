// The user's current line, cheap enough to be asked for at every recorded operation: only frames are walked, and
// whether a code object belongs to the user is decided once per code object.
#include <memory>
#include <unordered_map>

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

class Locator {
 public:
  explicit Locator(std::vector<std::string> excludes) : excludes_(std::move(excludes)) {}
  ~Locator() {
    if (isEnding()) {
      new auto(std::move(files_));  // nobody may let go of Python's objects any more
      return;
    }
    const py::gil_scoped_acquire gil;
    files_.clear();
  }

  std::string operator()() {
    const WithGil gil;
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      const std::string& file = userFile(code);
      if (!file.empty()) return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
    return {};
  }

 private:
  struct File {
    py::object code;   // kept, so that its address is not reused
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

}  // namespace

std::function<std::string()> sourceLocator(std::vector<std::string> excludes) {
  // shared: std::function copies its target, and the frames seen are worth keeping.
  auto locator = std::make_shared<Locator>(std::move(excludes));
  return [locator] { return (*locator)(); };
}

}  // namespace abele::bind
