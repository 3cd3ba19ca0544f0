// The only file that depends on c10's private interfaces of dispatch modes. Tried with torch 2.13.
#include "capture/dispatch_mode.h"

#include <stdexcept>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace abele::capture {
namespace {

using ModeStack = c10::impl::TorchDispatchModeTLS;
using ModeObject = c10::impl::PyObject_TorchDispatchMode;

/// Takes the top mode off the stack and puts it back, also when the kernel throws.
class PoppedTop {
 public:
  PoppedTop() : mode_(ModeStack::pop_stack()) {}
  ~PoppedTop() { ModeStack::push_non_infra_mode_onto_stack(mode_); }
  PoppedTop(const PoppedTop&) = delete;
  PoppedTop& operator=(const PoppedTop&) = delete;

 private:
  std::shared_ptr<ModeObject> mode_;
};

[[noreturn]] void unreachable(const char* what) {
  throw std::logic_error(std::string("abele's dispatch mode: unexpected call of ") + what);
}

/// An "interpreter" written in C++. Torch asks it only to dispatch and to detach: no tensor has it as its own.
class Interpreter final : public c10::impl::PyInterpreterVTable {
 public:
  explicit Interpreter(OperatorObserver* observer) : observer_(observer) {}
  void close() { observer_ = nullptr; }

  std::string name() const override { return "abele"; }
  // The mode object belongs to the caller of capture(); nothing to count.
  void incref(PyObject*) const override {}
  void decref(PyObject*) const override {}
  bool try_incref(const c10::impl::PyObjectSlot&) const override { return false; }
  size_t refcnt(PyObject*) const override { return 1; }

  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    PoppedTop popped;
    return self->shallow_copy_and_detach(self->version_counter(), self->allow_tensor_metadata_change());
  }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    PoppedTop popped;
    // Thread-local state that someone saved during the capture may bring the mode back after it.
    if (observer_ == nullptr) return op.callBoxed(stack);
    observer_->onOperator(op, stack);
  }

  void reportErrorCallback(PyObject*, c10::DispatchKey) const override {}
  void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet,
                                         torch::jit::Stack*, bool, bool) const override {
    unreachable("python_op_registration_trampoline");
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char*, const char*) const override {
    throw std::runtime_error("no kernel for the shapes of " + op);
  }
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const override {
    unreachable("python_dispatcher");
  }
  bool is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { unreachable("is_contiguous"); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override {
    unreachable("sym_is_contiguous");
  }
  bool is_strides_like(const c10::TensorImpl*, at::MemoryFormat) const override { unreachable("is_strides_like"); }
  bool is_non_overlapping_and_dense(const c10::TensorImpl*) const override { unreachable("is_dense"); }
  c10::Device device(const c10::TensorImpl*) const override { unreachable("device"); }
  int64_t dim(const c10::TensorImpl*) const override { unreachable("dim"); }
  c10::IntArrayRef strides(const c10::TensorImpl*) const override { unreachable("strides"); }
  c10::IntArrayRef sizes(const c10::TensorImpl*) const override { unreachable("sizes"); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl*) const override { unreachable("sym_sizes"); }
  c10::Layout layout(const c10::TensorImpl*) const override { unreachable("layout"); }
  int64_t numel(const c10::TensorImpl*) const override { unreachable("numel"); }
  c10::SymInt sym_numel(const c10::TensorImpl*) const override { unreachable("sym_numel"); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl*) const override { unreachable("sym_strides"); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl*) const override { unreachable("sym_storage_offset"); }
  void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_deletion(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_record(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_event_wait(c10::DeviceType, uintptr_t, uintptr_t) const override {}
  void trace_gpu_memory_allocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_memory_deallocation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_device_synchronization(c10::DeviceType) const override {}
  void trace_gpu_stream_synchronization(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_synchronization(c10::DeviceType, uintptr_t) const override {}
  void reset_backward_hooks(const c10::TensorImpl*) const override {}

 private:
  OperatorObserver* observer_;
};

}  // namespace

/// What lives on torch's mode stack. Copies of the stack may outlive the capture, so all of it is owned together.
struct DispatchMode::Entry {
  Entry(OperatorObserver* observer, void* mode_object)
      : vtable(observer), interpreter(&vtable), object(static_cast<PyObject*>(mode_object), &interpreter) {}
  Interpreter vtable;
  c10::impl::PyInterpreter interpreter;
  ModeObject object;
  ModeStack saved;  // the stack before the capture
};

namespace {
char stand_in;  // for programs without Python: never dereferenced, its address only has to be non-null
}

DispatchMode::DispatchMode(OperatorObserver* observer, void* mode_object)
    : entry_(std::make_shared<Entry>(observer, mode_object ? mode_object : static_cast<void*>(&stand_in))) {
  entry_->saved = ModeStack::get_state();
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<ModeObject>(entry_, &entry_->object));
}

DispatchMode::~DispatchMode() {
  entry_->vtable.close();
  // Also right when the program left modes of its own behind.
  ModeStack saved;
  std::swap(saved, entry_->saved);
  ModeStack::set_state(std::move(saved));
}

DispatchMode::Resumed::Resumed(const DispatchMode& mode) {
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<ModeObject>(mode.entry_, &mode.entry_->object));
}
DispatchMode::Resumed::~Resumed() { ModeStack::pop_stack(); }

DispatchMode::Paused::Paused(const DispatchMode& mode) {
  const int64_t depth = ModeStack::stack_len();
  if (depth == 0 || ModeStack::get_stack_at(depth - 1).get() != &mode.entry_->object) return;
  ModeStack::pop_stack();
  mode_ = &mode;
}
DispatchMode::Paused::~Paused() {
  if (mode_ == nullptr) return;
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<ModeObject>(mode_->entry_, &mode_->entry_->object));
}

}  // namespace abele::capture
