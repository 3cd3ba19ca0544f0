// For writers of custom operators: a shared library that registers an operator when it is loaded (dlopen, or
// ctypes.cdll.LoadLibrary before the model is compiled). Link the library to libabele. poptorch.custom_op and
// abele::ops::customOp call the operator. Example: examples/cpp/custom_op/. Source: spec annotations.md, section 9.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "abele/export.h"

namespace at {
class Tensor;
}

namespace abele {

/// Shape and element type (the number of a c10::ScalarType) of a tensor.
struct TensorInfo {
  int dtype = 0;
  std::vector<int64_t> sizes;
  bool operator==(const TensorInfo&) const = default;
};

/// Named constants of a call. Floats have 32 bits, integers 64. [1, 2] and [1.0, 2.0] are different.
class ABELE_API CustomAttributes {
 public:
  using Value =
      std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>, std::vector<std::string>>;
  void set(const std::string& name, Value value) { values_[name] = std::move(value); }
  bool has(const std::string& name) const { return values_.contains(name); }
  /// Throws E0708 if the attribute is missing or has another type.
  template <class T>
  const T& get(const std::string& name) const {
    const Value* value = find(name);
    if (value == nullptr || !std::holds_alternative<T>(*value)) refuse(name, value != nullptr);
    return std::get<T>(*value);
  }
  /// Returns `otherwise` if the attribute is missing. Throws E0708 if it has another type.
  template <class T>
  T get(const std::string& name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
  /// Returns text that parse() reads back.
  std::string str() const;
  static CustomAttributes parse(const std::string& text);
  bool operator==(const CustomAttributes&) const = default;

 private:
  const Value* find(const std::string& name) const;
  [[noreturn]] static void refuse(const std::string& name, bool is_there);
  std::map<std::string, Value> values_;
};

/// Where a kernel runs.
struct CustomContext {
  int num_threads = 1;     // number of threads that the kernel may use
  void* stream = nullptr;  // the device's stream; null on a CPU
};

struct CustomOp {
  using Tensors = std::vector<at::Tensor>;
  using Infos = std::vector<TensorInfo>;
  std::string domain = {}, name = {};
  int64_t version = 1;
  int min_inputs = 0, max_inputs = 0;
  std::function<Infos(const Infos& inputs, const CustomAttributes&)> infer = {};
  /// Returns new tensors with the shapes and types that infer returns.
  std::function<Tensors(const CustomContext&, const Tensors& inputs, const CustomAttributes&)> forward = {};
  /// Optional. Returns one gradient per input; an undefined tensor means that the input has no gradient.
  std::function<Tensors(const CustomContext&, const Tensors& inputs, const Tensors& outputs,
                        const Tensors& output_grads, const CustomAttributes&)>
      backward = {};
};

/// Registers an operator. Make it a static object of the library that holds the operator. If two operators have the
/// same domain, name and version, every use of them throws E0708. Threads: safe.
class ABELE_API RegisterCustomOp {
 public:
  explicit RegisterCustomOp(CustomOp op);
};

namespace ops {

/// Runs a registered operator. Throws E0106 if it is not registered, E0708 if inputs or outputs do not fit it.
ABELE_API std::vector<at::Tensor> customOp(const std::vector<at::Tensor>& inputs, const std::string& domain,
                                           const std::string& name, int64_t version,
                                           const std::vector<TensorInfo>& outputs,
                                           const CustomAttributes& attributes = {});

}  // namespace ops
}  // namespace abele
