// verification/verify.h for Python.
#include "verification/verify.h"

#include <deque>
#include <string>
#include <vector>

#include <pybind11/functional.h>

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using namespace py::literals;
using Tensors = std::vector<at::Tensor>;
using Forward = std::function<Tensors(Tensors)>;
using PythonUpdate = std::function<void(const Tensors&)>;

py::dict dictOf(const Difference& difference) {
  const py::object stage = difference.stage < 0 ? py::object(py::none()) : py::int_(difference.stage);
  return py::dict("kind"_a = difference.kind, "operator"_a = difference.op, "line"_a = difference.line,
                  "scope"_a = difference.scope, "direction"_a = difference.direction, "stage"_a = stage,
                  "batch"_a = difference.batch, "micro_batch"_a = difference.micro_batch,
                  "element"_a = py::tuple(py::cast(difference.element)), "elements"_a = difference.elements,
                  "of"_a = difference.of, "type"_a = difference.type, "found"_a = difference.found,
                  "expected"_a = difference.expected, "reason"_a = difference.reason);
}

py::dict dictOf(const Verification& verification) {
  const py::object difference = verification.difference ? py::object(dictOf(*verification.difference)) : py::none();
  return py::dict("batches"_a = verification.batches, "micro_batches"_a = verification.micro_batches,
                  "values"_a = verification.values, "notes"_a = verification.notes, "difference"_a = difference,
                  "text"_a = verification.text);
}

py::dict verify(compile::ProgramOptions options, Forward forward, Forward eager, std::function<void()> after_eager,
                const std::vector<TensorRow>& model, const std::vector<Tensors>& batches,
                const compile::OptimizerSpec& optimizer, const std::function<PythonUpdate()>& make_update,
                const py::object& mode, std::vector<std::string> excludes,
                std::function<std::vector<at::Generator>()> generators) {
  std::deque<at::Tensor> tensors;
  verification::VerifyRequest request{.options = std::move(options),
                                      .program = {.forward = calledWithGil(std::move(forward))},
                                      .optimizer = optimizer,
                                      .eager = calledWithGil(std::move(eager)),
                                      .after_eager = calledWithGil(std::move(after_eager)),
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
  // Autograd must not run with the GIL; the functions take it again.
  return dictOf(withoutGil([&] { return verification::verify(request, batches); }));
}

}  // namespace

void registerVerify(py::module_& module) {
  module.def("verify", &verify, py::arg("options"), py::arg("forward"), py::arg("eager"), py::arg("after_eager"),
             py::arg("model"), py::arg("batches"), py::arg("optimizer"), py::arg("make_update"), py::arg("mode"),
             py::arg("excludes"), py::arg("generators"));
}

}  // namespace abele::bind
