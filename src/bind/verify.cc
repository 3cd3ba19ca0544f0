// verification/verify.h for Python.
#include "verification/verify.h"

#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include <pybind11/functional.h>

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using Tensors = std::vector<at::Tensor>;
using Forward = std::function<Tensors(Tensors)>;
using NamedTensor = std::tuple<std::string, at::Tensor, bool>;  // name, tensor, is a parameter
using PythonUpdate = std::function<void(const Tensors&)>;

py::dict dictOf(const verification::Difference& difference) {
  py::dict dict;
  dict["kind"] = verification::kindName(difference.kind);
  dict["operator"] = difference.op;
  dict["line"] = difference.line;
  dict["scope"] = difference.scope;
  dict["direction"] = exe::directionName(static_cast<exe::Direction>(difference.direction));
  dict["stage"] = difference.stage < 0 ? py::object(py::none()) : py::int_(difference.stage);
  dict["batch"] = difference.batch;
  dict["micro_batch"] = difference.micro_batch;
  dict["element"] = py::tuple(py::cast(difference.element));
  dict["elements"] = difference.elements;
  dict["of"] = difference.of;
  dict["type"] = difference.type;
  dict["found"] = difference.found;
  dict["expected"] = difference.expected;
  dict["reason"] = difference.reason;
  return dict;
}

py::dict dictOf(const verification::Verification& verification) {
  py::dict dict;
  dict["batches"] = verification.batches;
  dict["micro_batches"] = verification.micro_batches;
  dict["values"] = verification.values;
  dict["notes"] = verification.notes;
  dict["difference"] = verification.difference ? py::object(dictOf(*verification.difference)) : py::none();
  dict["text"] = verification.text();
  return dict;
}

py::dict verify(compile::ProgramOptions options, Forward forward, Forward eager, const std::vector<NamedTensor>& model,
                const std::vector<Tensors>& batches, const compile::OptimizerSpec& optimizer,
                const std::function<PythonUpdate()>& make_update, const py::object& mode,
                std::vector<std::string> excludes, std::function<std::vector<at::Generator>()> generators) {
  std::deque<at::Tensor> tensors;
  verification::VerifyRequest request{.options = std::move(options),
                                      .program = {.forward = calledWithGil(std::move(forward))},
                                      .optimizer = optimizer,
                                      .eager = calledWithGil(std::move(eager)),
                                      .make_update = {}};
  for (const auto& [name, tensor, is_parameter] : model) {
    tensors.push_back(tensor);
    request.program.model.push_back({name, &tensors.back(), is_parameter});
  }
  request.program.source_location = sourceLocator(std::move(excludes));
  request.program.generators = calledWithGil(std::move(generators));
  request.program.mode_object = mode.is_none() ? nullptr : mode.ptr();
  if (make_update)
    request.make_update = [&make_update] {
      const WithGil gil;
      return verification::Update(calledWithGil(make_update()));
    };
  verification::Verification result;
  {
    const NoGil no_gil;  // autograd must not run with the GIL; the functions take it again
    result = verification::verify(request, batches);
  }
  return dictOf(result);
}

}  // namespace

void registerVerify(py::module_& module) {
  module.def("verify", &verify, py::arg("options"), py::arg("forward"), py::arg("eager"), py::arg("model"),
             py::arg("batches"), py::arg("optimizer"), py::arg("make_update"), py::arg("mode"), py::arg("excludes"),
             py::arg("generators"));
}

}  // namespace abele::bind
