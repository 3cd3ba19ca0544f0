// abele/ops.h and abele/custom_op.h.
#include <ATen/core/Tensor.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "abele/custom_op.h"
#include "abele/ops.h"
#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using ops::Body;
using ops::Tensors;

void* modeOf(const py::object& mode) { return mode.is_none() ? nullptr : mode.ptr(); }

void registerControlFlow(py::module_& module) {
  module.def(
      "forLoop",
      [](int64_t count, const Body& body, const Tensors& inputs, const py::object& mode) {
        return ops::forLoop(count, body, inputs, modeOf(mode));
      },
      py::arg("count"), py::arg("body"), py::arg("inputs"), py::arg("mode"));
  module.def(
      "cond",
      [](const at::Tensor& condition, const Body& then_body, const Tensors& then_inputs, const Body& else_body,
         const Tensors& else_inputs, const py::object& mode) {
        return ops::cond(condition, then_body, then_inputs, else_body, else_inputs, modeOf(mode));
      },
      py::arg("condition"), py::arg("then_body"), py::arg("then_inputs"), py::arg("else_body"), py::arg("else_inputs"),
      py::arg("mode"));
  py::class_<ops::HostCall>(module, "HostCall")
      .def(py::init([](Body function, std::string id, bool is_pure) {
             return std::make_unique<ops::HostCall>(calledWithGil(std::move(function)), std::move(id), is_pure);
           }),
           py::arg("function"), py::arg("id"), py::arg("is_pure") = false)
      .def("__call__", &ops::HostCall::operator(), py::arg("inputs"));
}

template <class T>
void setAttribute(CustomAttributes& self, const std::string& name, const T& value) {
  self.set(name, value);
}

void registerCustomOps(py::module_& module) {
  using Attributes = CustomAttributes;
  py::class_<Attributes>(module, "CustomAttributes")
      .def(py::init<>())
      .def("setInt", setAttribute<int64_t>)
      .def("setFloat", setAttribute<float>)
      .def("setString", setAttribute<std::string>)
      .def("setInts", setAttribute<std::vector<int64_t>>)
      .def("setFloats", setAttribute<std::vector<float>>)
      .def("setStrings", setAttribute<std::vector<std::string>>);
  module.def(
      "customOp",
      [](const Tensors& inputs, const std::string& domain, const std::string& name, int64_t version,
         const Tensors& examples, const Attributes& attributes) {
        std::vector<TensorInfo> outputs;
        for (const at::Tensor& example : examples)
          outputs.push_back({static_cast<int>(example.scalar_type()), example.sizes().vec()});
        return ops::customOp(inputs, domain, name, version, outputs, attributes);
      },
      py::arg("inputs"), py::arg("domain"), py::arg("name"), py::arg("version"), py::arg("examples"),
      py::arg("attributes"));
}

}  // namespace

void registerOperators(py::module_& module) {
  using ops::PrintFormat;
  module.def("nop", &ops::nop, py::arg("tensor"));
  module.def(
      "printTensor",
      [](const at::Tensor& tensor, const std::string& title, bool gradient, int64_t threshold, int64_t edge,
         int64_t width, int64_t digits, const std::string& style, const std::string& separator, const std::string& open,
         const std::string& close) {
        return ops::printTensor(tensor, title,
                                {gradient, threshold, edge, width, digits, style, separator, open, close});
      },
      py::arg("tensor"), py::arg("title"), py::arg("print_gradient"), py::arg("summarise_threshold"),
      py::arg("edge_items"), py::arg("max_line_width"), py::arg("digits"), py::arg("float_format"),
      py::arg("separator"), py::arg("open_bracket"), py::arg("close_bracket"));
  module.def("dynamicSlice", &ops::dynamicSlice, py::arg("tensor"), py::arg("dim"), py::arg("start"), py::arg("size"),
             py::arg("step"));
  module.def("sliceAt", &ops::sliceAt, py::arg("tensor"), py::arg("dim"), py::arg("start"), py::arg("size"),
             py::arg("step"));
  module.def("dynamicUpdate", &ops::dynamicUpdate, py::arg("input"), py::arg("src"), py::arg("dim"), py::arg("start"),
             py::arg("size"));
  module.def(
      "serializedMatMul",
      [](const at::Tensor& lhs, const at::Tensor& rhs, int mode, int64_t factor, bool keep_precision) {
        return ops::serializedMatMul(lhs, rhs, static_cast<MatMulSerializationMode>(mode), factor, keep_precision);
      },
      py::arg("lhs"), py::arg("rhs"), py::arg("mode"), py::arg("factor"), py::arg("keep_precision"));
  module.def("fps", &ops::fps, py::arg("src"), py::arg("ptr"), py::arg("ratio"), py::arg("random_start"));
  module.def(
      "nearest",
      [](const at::Tensor& x, const at::Tensor& y, const std::optional<at::Tensor>& batch_x,
         const std::optional<at::Tensor>& batch_y) {
        return ops::nearest(x, y, batch_x.value_or(at::Tensor()), batch_y.value_or(at::Tensor()));
      },
      py::arg("x"), py::arg("y"), py::arg("batch_x"), py::arg("batch_y"));
  module.def("ctcBeamSearchDecoder", &ops::ctcBeamSearchDecoder, py::arg("probs"), py::arg("lengths"), py::arg("blank"),
             py::arg("beam_width"), py::arg("top_paths"));
  registerControlFlow(module);
  registerCustomOps(module);
}

}  // namespace abele::bind
