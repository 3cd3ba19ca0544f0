// Operators of simulated devices: ATen's CPU kernel on the same bytes, enqueued on the current stream.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/set.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "device.h"
#include "generator.h"
#include "simulated.h"

namespace simulated {
namespace {

using Stack = torch::jit::Stack;

bool isDevice(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

int64_t extentOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return (last + 1) * tensor.itemsize();
}

Access accessOf(const at::Tensor& tensor, bool writes) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data()) +
                     static_cast<uintptr_t>(tensor.storage_offset() * tensor.itemsize());
  return {begin, begin + static_cast<uintptr_t>(extentOf(tensor)), writes};
}

/// The same bytes as a tensor of the CPU.
at::Tensor twinOf(const at::Tensor& tensor) {
  const c10::InferenceMode plain;
  const c10::Storage& storage = tensor.storage();
  c10::Storage memory(c10::Storage::use_byte_size_t{}, storage.nbytes(),
                      c10::DataPtr(twin(storage.data()), c10::Device(c10::DeviceType::CPU)), nullptr,
                      /*resizable=*/false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(memory), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

template <class Fn>
c10::IValue mapTensors(const c10::IValue& value, const Fn& fn) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(fn(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(fn(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(fn(*tensor)) : tensor);
    return list;
  }
  return value;
}

template <class Fn>
void forEachTensor(const c10::IValue& value, const Fn& fn) {
  mapTensors(value, [&](const at::Tensor& tensor) {
    fn(tensor);
    return tensor;
  });
}

bool writesArgument(const c10::FunctionSchema& schema, size_t index) {
  const auto* alias = schema.arguments()[index].alias_info();
  if (alias != nullptr && alias->isWrite()) return true;
  // Running statistics: the schema does not tell.
  return schema.name() == "aten::native_batch_norm" && (index == 3 || index == 4);
}

bool returnsView(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool returnsWritten(const c10::Argument& result) {
  return result.alias_info() != nullptr && result.alias_info()->isWrite();
}

bool holdsTensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

/// Do the shapes of its results depend on values?
bool dependsOnValues(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::nonzero",
                                                        "aten::masked_select",
                                                        "aten::_unique2",
                                                        "aten::_unique",
                                                        "aten::unique_dim",
                                                        "aten::bincount",
                                                        "aten::unique_consecutive",
                                                        "aten::equal",
                                                        "aten::repeat_interleave",
                                                        "aten::_ctc_loss",
                                                        "aten::histogram",
                                                        "aten::nonzero_static",
                                                        "aten::unique_dim_consecutive"};
  return names.contains(name);
}

/// One call: its operands, where it runs.
class Launch {
 public:
  Launch(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), schema_(op.schema()), stack_(*stack), count_(schema_.arguments().size()) {
    for (size_t i = 0; i < count_; ++i) {
      forEachTensor(argument(i), [&](const at::Tensor& tensor) {
        if (!isDevice(tensor)) {
          TORCH_CHECK(tensor.dim() == 0 && tensor.device().is_cpu(),
                      "Expected all tensors to be on the same device, but found at least two devices, simulated and ",
                      tensor.device(), "! (", schema_.name(), ")");
          return;
        }
        if (device_ < 0) device_ = tensor.device().index();
        TORCH_CHECK(device_ == tensor.device().index(),
                    "Expected all tensors to be on the same device, but found at least two devices, simulated:",
                    device_, " and ", tensor.device(), "! (", schema_.name(), ")");
        elements_ = std::max(elements_, tensor.numel());
      });
      if (argument(i).isDevice() && argument(i).toDevice().type() == kType && device_ < 0)
        device_ = argument(i).toDevice().index();
    }
    if (device_ < 0) device_ = currentDevice();
    stream_ = currentStream(device_);
  }

  void run() {
    const bool only_tensors = std::ranges::all_of(
        schema_.returns(), [](const c10::Argument& result) { return holdsTensors(result.real_type()); });
    resizeOuts();
    prepare();
    if (!only_tensors || dependsOnValues(schema_.name())) return runNow();
    Stack results;
    if (!inferResults(results)) return runNow();
    std::vector<at::Tensor> made;  // twins of the new results, in order
    for (size_t r = 0; r < results.size(); ++r) {
      if (returnsWritten(schema_.returns()[r])) continue;
      results[r] = mapTensors(results[r], [&](const at::Tensor& like) {
        const at::Tensor tensor = emptyLike(like);
        accesses_.push_back(accessOf(tensor, true));
        made.push_back(twinOf(tensor));
        return tensor;
      });
    }
    enqueue(device_, stream_, name(), accesses_, [op = op_, operands = operands_, made, numbers = numbers_]() mutable {
      numbers.prepare();
      op.callBoxed(&operands);
      size_t next = 0;
      for (size_t r = 0; r < operands.size(); ++r) {
        if (returnsWritten(op.schema().returns()[r])) continue;
        forEachTensor(operands[r], [&](const at::Tensor& result) {
          const at::Tensor& to = made.at(next++);
          TORCH_CHECK(result.sizes() == to.sizes() && result.scalar_type() == to.scalar_type(), op.schema().name(),
                      " gave another shape than it was expected to: ", result.sizes(), " for ", to.sizes());
          copyElements(to, result);
        });
      }
    });
    giveBack(std::move(results));
  }

  static void copyElements(const at::Tensor& to, const at::Tensor& from) {
    if (to.strides() == from.strides() && !to.is_non_overlapping_and_dense()) {  // expanded
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(extentOf(to)));
      return;
    }
    to.copy_(from);
  }

 private:
  c10::IValue& argument(size_t i) { return stack_[stack_.size() - count_ + i]; }
  const char* name() const {
    static std::mutex mutex;
    static auto* const names = new std::unordered_set<std::string>;
    const std::lock_guard lock(mutex);
    return names->insert(schema_.name()).first->c_str();
  }
  at::Tensor emptyLike(const at::Tensor& like) const {
    return at::empty_strided(like.sizes(), like.strides(),
                             like.options().device(c10::Device(kType, static_cast<c10::DeviceIndex>(device_))));
  }

  /// `out` tensors take their shape before the kernel runs.
  void resizeOuts() {
    bool may_change = false;
    for (size_t i = 0; i < count_; ++i)
      if (schema_.arguments()[i].is_out() && argument(i).isTensor() && argument(i).toTensor().numel() == 0)
        may_change = true;
    if (!may_change) return;
    Stack trial;
    for (size_t i = 0; i < count_; ++i) trial.push_back(mapTensors(argument(i), &zerosLike));
    const Stack outs(trial);
    op_.callBoxed(&trial);
    for (size_t i = 0; i < count_; ++i)
      if (schema_.arguments()[i].is_out() && argument(i).isTensor()) {
        const at::Tensor& shape = outs[i].toTensor();
        if (argument(i).toTensor().sizes() != shape.sizes()) argument(i).toTensor().resize_(shape.sizes());
      }
  }

  /// Operands for the kernel, and what it touches.
  void prepare() {
    for (size_t i = 0; i < count_; ++i) {
      const bool writes = writesArgument(schema_, i);
      operands_.push_back(mapTensors(argument(i), [&](const at::Tensor& tensor) {
        if (!isDevice(tensor)) return plainNumber(tensor);
        accesses_.push_back(accessOf(tensor, writes));
        return twinOf(tensor);
      }));
      const auto type = schema_.arguments()[i].real_type();
      const auto optional = type->cast<c10::OptionalType>();
      const bool is_generator = (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
      if (is_generator) {
        const c10::IValue& given = argument(i);
        const auto from = given.isGenerator() ? std::optional(given.toGenerator()) : std::nullopt;
        numbers_ = takeNumbers(from, device_, elements_);
        operands_.back() = numbers_.generator;
        if (numbers_.of_graph) accesses_.push_back(numbers_.access());
      }
      if (operands_.back().isDevice()) operands_.back() = c10::Device(c10::DeviceType::CPU);
    }
  }

  static at::Tensor plainNumber(const at::Tensor& tensor) {
    const c10::InferenceMode plain;
    at::Tensor copy = at::empty_strided({}, {}, tensor.options());
    std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.itemsize());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  }
  static at::Tensor zerosLike(const at::Tensor& tensor) {
    if (!isDevice(tensor)) return plainNumber(tensor);
    const c10::InferenceMode plain;
    at::Tensor zeros = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    if (zeros.storage().nbytes() > 0) std::memset(zeros.mutable_data_ptr(), 0, zeros.storage().nbytes());
    return zeros;
  }

  /// Results as the CPU makes them of zeros. False: it cannot.
  bool inferResults(Stack& results) {
    const bool all_written = std::ranges::all_of(schema_.returns(), &returnsWritten);
    Stack trial;
    if (!all_written) {
      const c10::InferenceMode plain;
      for (size_t i = 0; i < count_; ++i) {
        c10::IValue value = mapTensors(argument(i), &zerosLike);
        if (operands_[i].isGenerator()) value = at::detail::createCPUGenerator();
        if (value.isDevice()) value = c10::Device(c10::DeviceType::CPU);
        trial.push_back(std::move(value));
      }
      try {
        op_.callBoxed(&trial);
      } catch (const c10::Error&) {
        return false;
      }
    }
    for (size_t r = 0; r < schema_.returns().size(); ++r)
      results.push_back(returnsWritten(schema_.returns()[r]) ? writtenResult(r) : trial[r]);
    return true;
  }

  /// The argument that is returned.
  c10::IValue writtenResult(size_t r) {
    const auto& symbols = schema_.returns()[r].alias_info()->beforeSets();
    for (size_t i = 0; i < count_; ++i) {
      const auto* alias = schema_.arguments()[i].alias_info();
      if (alias != nullptr && alias->beforeSets() == symbols) return argument(i);
    }
    TORCH_CHECK(false, schema_.name(), " returns none of its arguments");
  }

  /// The program waits: a value goes to the host, or decides a shape.
  void runNow() {
    for (const Access& access : accesses_) static_cast<void>(access);
    auto operands = std::make_shared<Stack>(operands_);
    enqueue(device_, stream_, name(), accesses_, [op = op_, operands] { op.callBoxed(operands.get()); });
    waitForStream(device_, stream_);
    Stack results;
    for (size_t r = 0; r < schema_.returns().size(); ++r)
      results.push_back(returnsWritten(schema_.returns()[r])
                            ? writtenResult(r)
                            : mapTensors((*operands)[r], [&](const at::Tensor& value) {
                                const at::Tensor tensor = emptyLike(value);
                                enqueue(device_, stream_, name(), {accessOf(tensor, true)},
                                        [to = twinOf(tensor), value] { copyElements(to, value); });
                                return tensor;
                              }));
    giveBack(std::move(results));
  }

  void giveBack(Stack results) {
    torch::jit::drop(stack_, count_);
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  const size_t count_;
  int device_ = -1, stream_ = 0;
  int64_t elements_ = 0;
  Stack operands_;
  Numbers numbers_;
  std::vector<Access> accesses_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  // As on any accelerator, libraries of operators have to bring kernels of their own.
  TORCH_CHECK_NOT_IMPLEMENTED(op.schema().name().starts_with("aten::"), "Could not run '", op.schema().name(),
                              "' with arguments from the 'simulated' backend");
  if (returnsView(op.schema())) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  Launch(op, stack).run();
}

// --- memory ----------------------------------------------------------------------------------------------------------
at::Tensor emptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

at::Tensor emptyFormat(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                       std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == sizes) return self;
  impl->set_sizes_contiguous(sizes);
  const auto bytes = static_cast<size_t>((self.storage_offset() + self.numel()) * self.itemsize());
  if (bytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    at::native::resize_bytes_nocuda(self.storage(), c10::SymInt(static_cast<int64_t>(bytes)));
  }
  return self;
}

at::Tensor& setStorage(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  strides.empty() && !sizes.empty() ? impl->set_sizes_contiguous(sizes) : impl->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& setTensor(at::Tensor& self, const at::Tensor& source) {
  return setStorage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// --- copies ----------------------------------------------------------------------------------------------------------
bool isPinnedTensor(const at::Tensor& tensor) { return isPinned(tensor.storage().data()); }

/// Device to device: each side's stream waits for the other's, as CUDA does.
void copyBetween(const at::Tensor& from, const at::Tensor& to) {
  const int source = from.device().index(), target = to.device().index();
  const int stream = currentStream(source);
  if (source != target) block(record(target, currentStream(target)), source, stream);
  enqueue(source, stream, "copy", {accessOf(from, false), accessOf(to, true)},
          [a = twinOf(from), b = twinOf(to)] { b.copy_(a); });
  if (source != target) block(record(source, stream), target, currentStream(target));
}

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::InferenceMode plain;
  if (to.numel() == 0) return to;
  if (from.sizes() != to.sizes()) return copyFrom(from.expand_as(to), to, non_blocking);
  if (isDevice(from) && isDevice(to)) {
    copyBetween(from, to);
    return to;
  }
  if (isDevice(to)) {
    const int device = to.device().index(), stream = currentStream(device);
    const bool is_lazy = non_blocking && isPinnedTensor(from);
    // The storage of pinned memory lives on; that of other memory was read when this returns.
    const at::Tensor source = is_lazy ? from.detach() : from.clone();
    std::vector<Access> accesses = {accessOf(to, true)};
    if (is_lazy) {
      accesses.push_back(accessOf(from, false));
      noteReader(from.storage().data(), +1);
    }
    enqueue(device, stream, "copy from the host", accesses, [source, is_lazy, b = twinOf(to)] {
      b.copy_(source);
      if (is_lazy) noteReader(source.storage().data(), -1);
    });
    if (!non_blocking) waitForStream(device, stream);
    return to;
  }
  const int device = from.device().index(), stream = currentStream(device);
  const bool is_lazy = non_blocking && isPinnedTensor(to);
  // A host that looks too early shall see it. Streams that read there have an order.
  if (is_lazy && to.is_non_overlapping_and_dense() && !hasReaders(to.storage().data()))
    std::memset(to.mutable_data_ptr(), 0xFF, static_cast<size_t>(extentOf(to)));
  std::vector<Access> accesses = {accessOf(from, false)};
  if (is_lazy) accesses.push_back(accessOf(to, true));
  enqueue(device, stream, "copy to the host", accesses, [a = twinOf(from), b = to.detach()] { b.copy_(a); });
  if (!is_lazy) waitForStream(device, stream);
  return to;
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copyFrom(from, to, false);
}

c10::Scalar localScalar(const at::Tensor& self) {
  const int device = self.device().index(), stream = currentStream(device);
  enqueue(device, stream, "item", {accessOf(self, false)}, [] {});
  waitForStream(device, stream);
  return at::_local_scalar_dense(twinOf(self));
}

void recordStreamOf(at::Tensor& self, at::Stream stream) {
  recordStream(self.storage().data(), stream.device_index(), static_cast<int>(stream.id()));
}

std::tuple<at::Tensor, at::Tensor> nativeDropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  return {at::mul(at::mul(input, mask), p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

int64_t chooseAttention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                        double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace
}  // namespace simulated

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &simulated::chooseAttention)
}  // namespace at::native

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &simulated::emptyFormat);
  m.impl("empty_strided", &simulated::emptyStrided);
  m.impl("resize_", &simulated::resize);
  m.impl("set_.source_Storage_storage_offset", &simulated::setStorage);
  m.impl("set_.source_Tensor", &simulated::setTensor);
  m.impl("_copy_from", &simulated::copyFrom);
  m.impl("_copy_from_and_resize", &simulated::copyFromAndResize);
  m.impl("_local_scalar_dense", &simulated::localScalar);
  m.impl("record_stream", &simulated::recordStreamOf);
  m.impl("native_dropout", &simulated::nativeDropout);
  // Composite on devices without a kernel of their own, and then other bits than the CPU's.
  for (const char* name :
       {"convolution", "convolution_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
        "native_group_norm_backward", "native_batch_norm", "native_batch_norm_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>());
}

// --- for Python ------------------------------------------------------------------------------------------------------
void simulated_set_delays(uint64_t seed) { simulated::setDelays(seed); }
int64_t simulated_take_findings(const char** text) {
  static std::string all;
  const std::vector<std::string> found = simulated::takeFindings();
  all.clear();
  for (const std::string& finding : found) all += finding + "\n";
  *text = all.c_str();
  return static_cast<int64_t>(found.size());
}
int64_t simulated_jobs() { return simulated::numJobs(); }
int64_t simulated_host_waits() { return simulated::numHostWaits(); }
int64_t simulated_captures() { return simulated::numCaptures(); }
int64_t simulated_replays() { return simulated::numReplays(); }
int64_t simulated_messages() { return simulated::numMessages(); }
void simulated_seed(uint64_t seed) { simulated::seedAll(seed); }
