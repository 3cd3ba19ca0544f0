// Functions that run on the host in the middle of a program.
#include <map>
#include <mutex>

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "abele/ops.h"
#include "base/error.h"
#include "base/fork.h"
#include "capture/annotate.h"
#include "operators/library.h"

namespace abele::ops {
namespace {

using Signature = Tensors(at::TensorList, int64_t);

struct Kind {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  auto operator<=>(const Kind&) const = default;
};
using Kinds = std::vector<Kind>;

Kinds kindsOf(at::TensorList tensors) {
  Kinds kinds;
  for (const at::Tensor& tensor : tensors) kinds.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  return kinds;
}

std::string textOf(const Kinds& kinds) {
  std::string text;
  for (const auto& [dtype, sizes] : kinds) {
    text += cat(text.empty() ? "" : ", ", c10::toString(dtype), "[");
    for (size_t i = 0; i < sizes.size(); ++i) text += cat(i > 0 ? "," : "", sizes[i]);
    text += "]";
  }
  return text.empty() ? "no tensor" : text;
}

Tensors zerosOf(const Kinds& kinds) {
  Tensors tensors;
  for (const Kind& kind : kinds) tensors.push_back(at::zeros(kind.sizes, kind.dtype));
  return tensors;
}

bool& isInside() {
  thread_local bool inside = false;
  return inside;
}

}  // namespace

struct HostCall::Impl {
  Body function;
  std::string id;
  bool is_pure = false;
  std::string line;  // source line of the call that was captured last
  int64_t number = -1;
  std::map<Kinds, Kinds> outputs;  // by the types of the inputs

  Tensors callOutside(const Tensors& inputs) const {
    ABELE_REQUIRE(!isInside(), E0710,
                  {.what = cat("host function ", id, " is called inside another one"),
                   .remedy = "call the inner function directly"});
    struct Inside {
      Inside() { isInside() = true; }
      ~Inside() { isInside() = false; }
    } inside;
    Tensors results;
    capture::outsideCapture([&] { results = function(inputs); });
    for (const at::Tensor& result : results)
      ABELE_REQUIRE(result.defined() && result.has_storage() && result.layout() == at::kStrided, E0708,
                    {.what = cat("host function ", id, " returns a result that is not a dense tensor"),
                     .at = line,
                     .found = result.defined() ? "a tensor without dense memory" : "an undefined tensor",
                     .expected = "the same number of tensors in every call, of the same shapes and types"});
    return results;
  }

  Tensors callInCapture(const Tensors& inputs) {
    if (!is_pure) return zerosOf(outputs.at(kindsOf(inputs)));
    Tensors results = callOutside(inputs);
    outputs[kindsOf(inputs)] = kindsOf(results);
    return results;
  }

  /// A call in a step. The rest of the program was laid out for the outputs that were captured.
  Tensors callInStep(const Tensors& inputs) const {
    const Kinds& expected = outputs.at(kindsOf(inputs));
    Tensors results = callOutside(inputs);
    const Kinds found = kindsOf(results);
    ABELE_REQUIRE(found == expected, E0708,
                  {.what = cat("host function ", id, " returns tensors of other shapes or types than at compile time"),
                   .at = line,
                   .found = textOf(found),
                   .expected = textOf(expected),
                   .remedy = is_pure ? "pad the results to one shape"
                                     : "pad the results to one shape; at compile time the function is called with "
                                       "zeros"});
    return results;
  }
};

namespace {

/// Functions that programs have captured. They live as long as the process, because nothing reports when the last
/// program that calls a function is gone. Never destroyed, because a function may be Python's.
struct CapturedFunctions {
  ProcessMutex mutex;
  std::vector<std::shared_ptr<void>> owners;
  std::vector<std::function<Tensors(const Tensors&, bool is_capturing)>> functions;
  static CapturedFunctions& instance() {
    static auto* captured = new CapturedFunctions();
    return *captured;
  }
};

/// Refuses an id that was used before in the capture that runs on this thread.
void requireOwnId(const std::string& id, int64_t number) {
  thread_local int64_t capture_number = -1;
  thread_local std::map<std::string, int64_t> ids;
  if (capture_number != capture::captureNumber()) ids.clear();
  capture_number = capture::captureNumber();
  const auto [found, is_new] = ids.emplace(id, number);
  ABELE_REQUIRE(is_new || found->second == number, E0710,
                {.what = cat("two host functions with the id ", id), .expected = "a different id for each"});
}

}  // namespace

HostCall::HostCall(Body function, std::string id, bool is_pure) : impl_(std::make_shared<Impl>()) {
  ABELE_REQUIRE(function, E0708, {.what = cat("host function ", id, " is empty"), .remedy = "pass a function"});
  impl_->function = std::move(function);
  impl_->id = std::move(id);
  impl_->is_pure = is_pure;
}
HostCall::~HostCall() = default;

Tensors HostCall::operator()(const Tensors& inputs) {
  Impl& impl = *impl_;
  if (!capture::isCapturing()) return impl.callOutside(inputs);
  ABELE_REQUIRE(impl.is_pure || !capture::isTraining(), E0710,
                {.what = cat("host function ", impl.id, " in a training model"), .expected = "an inference model"});
  CapturedFunctions& captured = CapturedFunctions::instance();
  if (impl.number < 0) {
    std::lock_guard lock(captured.mutex);
    impl.number = static_cast<int64_t>(captured.functions.size());
    captured.owners.push_back(impl_);
    captured.functions.emplace_back([&impl](const Tensors& values, bool is_capturing) {
      return is_capturing ? impl.callInCapture(values) : impl.callInStep(values);
    });
  }
  requireOwnId(impl.id, impl.number);
  impl.line = capture::currentLine();
  if (!impl.is_pure) {
    const Kinds kinds = kindsOf(inputs);
    Tensors zeros;
    capture::outsideCapture([&] { zeros = zerosOf(kinds); });
    impl.outputs[kinds] = kindsOf(impl.callOutside(zeros));
  }
  return operators::operatorOf<Signature>("abele_op::host_call").call(inputs, impl.number);
}

}  // namespace abele::ops

namespace abele::operators {

std::vector<at::Tensor> hostCallKernel(at::TensorList inputs, int64_t number) {
  auto& captured = ops::CapturedFunctions::instance();
  std::function<ops::Tensors(const ops::Tensors&, bool)> function;
  {
    std::lock_guard lock(captured.mutex);
    ABELE_REQUIRE(number >= 0 && number < static_cast<int64_t>(captured.functions.size()), E0106,
                  {.what = "a host function of another process"});
    function = captured.functions[number];
  }
  // Tensors of inference mode have no gradients and no versions.
  const c10::InferenceMode not_inference(false);
  ops::Tensors copies;
  for (const at::Tensor& input : inputs) copies.push_back(input.detach().clone());
  ops::Tensors results = function(copies, capture::isCapturing());
  for (at::Tensor& result : results) result = result.detach().clone(at::MemoryFormat::Contiguous);
  return results;
}

}  // namespace abele::operators
