// The operators printTensor and nop.
#include <cstdio>

#include <ATen/ops/clone.h>
#include <torch/csrc/autograd/custom_function.h>

#include "abele/ops.h"
#include "base/error.h"
#include "capture/annotate.h"
#include "operators/library.h"

namespace abele {
namespace {

using PrintSignature = at::Tensor(const at::Tensor&, std::string, bool, at::IntArrayRef, std::string,
                                  std::vector<std::string>);

ops::PrintFormat formatOf(at::IntArrayRef numbers, std::string float_format, std::vector<std::string> marks) {
  ABELE_CHECK(numbers.size() == 4 && marks.size() == 3, "a print_tensor of another version");
  return {.summarise_threshold = numbers[0],
          .edge_items = numbers[1],
          .max_line_width = numbers[2],
          .digits = numbers[3],
          .float_format = std::move(float_format),
          .separator = std::move(marks[0]),
          .open_bracket = std::move(marks[1]),
          .close_bracket = std::move(marks[2])};
}

struct PrintFunction : torch::autograd::Function<PrintFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const std::string& title,
                            bool gradient, std::vector<int64_t> numbers, const std::string& float_format,
                            std::vector<std::string> marks) {
    context->saved_data["title"] = title;
    context->saved_data["gradient"] = gradient;
    context->saved_data["numbers"] = numbers;
    context->saved_data["float_format"] = float_format;
    context->saved_data["marks"] = marks;
    const at::AutoDispatchBelowADInplaceOrView below;
    return operators::operatorOf<PrintSignature>("abele_op::print_tensor")
        .call(x, title, gradient, numbers, float_format, marks);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto& saved = context->saved_data;
    at::Tensor grad = grads[0];
    if (grad.defined() && saved["gradient"].toBool()) {
      std::vector<std::string> marks;
      for (const c10::IValue& mark : saved["marks"].toListRef()) marks.push_back(mark.toStringRef());
      grad = operators::operatorOf<PrintSignature>("abele_op::print_tensor")
                 .call(grad, saved["title"].toStringRef() + "_gradient", false, saved["numbers"].toIntVector(),
                       saved["float_format"].toStringRef(), marks);
    }
    return {grad, {}, {}, {}, {}, {}};
  }
};

}  // namespace

namespace operators {

at::Tensor printKernel(const at::Tensor& x, std::string title, bool, at::IntArrayRef numbers, std::string float_format,
                       std::vector<std::string> marks) {
  if (!capture::isCapturing()) {
    // One write for all lines, so that lines of several threads do not mix.
    const std::string text = ops::printedText(x, title, formatOf(numbers, std::move(float_format), std::move(marks)));
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
  return x.clone();
}

at::Tensor printDifferentiably(const at::Tensor& x, std::string title, bool gradient, at::IntArrayRef numbers,
                               std::string float_format, std::vector<std::string> marks) {
  return PrintFunction::apply(x, title, gradient, numbers.vec(), float_format, marks);
}

}  // namespace operators

namespace ops {

at::Tensor nop(const at::Tensor& tensor) { return tensor.clone(); }

at::Tensor printTensor(const at::Tensor& tensor, const std::string& title, const PrintFormat& format) {
  const std::string& style = format.float_format;
  ABELE_REQUIRE(style == "auto" || style == "fixed" || style == "scientific" || style == "none", E0702,
                {.what = cat("float_format is ", style), .expected = "auto, fixed, scientific or none"});
  std::string name = title;
  if (name.empty()) {
    const int64_t value = capture::valueId(tensor);
    name = value < 0 ? "tensor" : cat("%", value);
  }
  return operators::operatorOf<PrintSignature>("abele_op::print_tensor")
      .call(tensor, name, format.print_gradient,
            {format.summarise_threshold, format.edge_items, format.max_line_width, format.digits}, style,
            {format.separator, format.open_bracket, format.close_bracket});
}

}  // namespace ops
}  // namespace abele
