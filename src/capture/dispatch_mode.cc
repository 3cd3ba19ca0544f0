// The only file that depends on c10's private interfaces of dispatch modes. Tried with torch 2.13.
#include "capture/dispatch_mode.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
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

/// Hands a call to the observer with the mode off.
void observe(OperatorObserver* observer, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  PoppedTop popped;
  // Thread-local state that someone saved during the capture may bring the mode back after it.
  if (observer == nullptr) return op.callBoxed(stack);
  observer->onOperator(op, stack);
}

/// The copy that autograd makes of a tensor's metadata. There is nothing to record.
c10::intrusive_ptr<c10::TensorImpl> detachUnobserved(const c10::TensorImpl* self) {
  PoppedTop popped;
  return self->shallow_copy_and_detach(self->version_counter(), self->allow_tensor_metadata_change());
}

/// An "interpreter" written in C++, for programs without Python. Torch asks it only to dispatch and to detach: no
/// tensor has it as its own.
class OwnInterpreter final : public c10::impl::PyInterpreterVTable {
 public:
  explicit OwnInterpreter(OperatorObserver* observer) : observer_(observer) {}
  void close() { observer_ = nullptr; }

  std::string name() const override { return "abele"; }
  void incref(PyObject*) const override {}
  void decref(PyObject*) const override {}
  bool try_incref(const c10::impl::PyObjectSlot&) const override { return false; }
  size_t refcnt(PyObject*) const override { return 1; }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    return detachUnobserved(self);
  }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    observe(observer_, op, stack);
  }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override {}
  void throw_abstract_impl_not_imported_error(std::string op, const char*, const char*) const override {
    throw std::runtime_error("no kernel for the shapes of " + op);
  }
#define ABELE_UNREACHABLE(result, name, parameters) \
  result name parameters const override { unreachable(#name); }
  ABELE_UNREACHABLE(void, python_op_registration_trampoline,
                    (const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet, torch::jit::Stack*, bool, bool))
  ABELE_UNREACHABLE(void, python_dispatcher, (const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*))
  ABELE_UNREACHABLE(bool, is_contiguous, (const c10::TensorImpl*, at::MemoryFormat))
  ABELE_UNREACHABLE(c10::SymBool, sym_is_contiguous, (const c10::TensorImpl*, at::MemoryFormat))
  ABELE_UNREACHABLE(bool, is_strides_like, (const c10::TensorImpl*, at::MemoryFormat))
  ABELE_UNREACHABLE(bool, is_non_overlapping_and_dense, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::Device, device, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(int64_t, dim, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::IntArrayRef, strides, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::IntArrayRef, sizes, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::SymIntArrayRef, sym_sizes, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::Layout, layout, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(int64_t, numel, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::SymInt, sym_numel, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::SymIntArrayRef, sym_strides, (const c10::TensorImpl*))
  ABELE_UNREACHABLE(c10::SymInt, sym_storage_offset, (const c10::TensorImpl*))
#undef ABELE_UNREACHABLE
#define ABELE_IGNORED(name, parameters) \
  void name parameters const override {}
  ABELE_IGNORED(trace_gpu_event_creation, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_event_deletion, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_event_record, (c10::DeviceType, uintptr_t, uintptr_t))
  ABELE_IGNORED(trace_gpu_event_wait, (c10::DeviceType, uintptr_t, uintptr_t))
  ABELE_IGNORED(trace_gpu_memory_allocation, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_memory_deallocation, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_stream_creation, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_device_synchronization, (c10::DeviceType))
  ABELE_IGNORED(trace_gpu_stream_synchronization, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(trace_gpu_event_synchronization, (c10::DeviceType, uintptr_t))
  ABELE_IGNORED(reset_backward_hooks, (const c10::TensorImpl*))
#undef ABELE_IGNORED

 private:
  OperatorObserver* observer_;
};

/// Stands before Python's interpreter in a process that has one: Python code looks at the mode stack (printing, torch's
/// own utilities) and accepts only modes of its own interpreter. Calls that arrive while the top mode is one of ours go
/// to its observer; everything else goes on to Python, unchanged. Put in place once and never taken away, so that no
/// thread sees it change.
class PythonInterpreter final : public c10::impl::PyInterpreterVTable {
 public:
  static PythonInterpreter& instance() {
    static auto* installed = new PythonInterpreter(c10::impl::getGlobalPyInterpreter());
    return *installed;
  }
  c10::impl::PyInterpreter* interpreter() { return interpreter_; }
  void open(PyObject* mode, OperatorObserver* observer) {
    std::lock_guard lock(mutex_);
    observers_[mode] = observer;
    num_observers_ = observers_.size();
  }
  void close(PyObject* mode) {
    std::lock_guard lock(mutex_);
    observers_.erase(mode);
    num_observers_ = observers_.size();
  }

  std::string name() const override { return python_->name(); }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    OperatorObserver* observer = top();
    observer != nullptr ? observe(observer, op, stack) : python_->dispatch(op, stack);
  }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    return top() != nullptr ? detachUnobserved(self) : python_->detach(self);
  }
#define ABELE_FORWARD(result, name, parameters, arguments) \
  result name parameters const override { return python_->name arguments; }
  ABELE_FORWARD(void, incref, (PyObject * object), (object))
  ABELE_FORWARD(void, decref, (PyObject * object), (object))
  ABELE_FORWARD(bool, try_incref, (const c10::impl::PyObjectSlot& slot), (slot))
  ABELE_FORWARD(size_t, refcnt, (PyObject * object), (object))
  ABELE_FORWARD(void, reportErrorCallback, (PyObject * callback, c10::DispatchKey key), (callback, key))
  ABELE_FORWARD(void, python_op_registration_trampoline,
                (const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack, bool with_keys, bool with_op),
                (op, key, keys, stack, with_keys, with_op))
  ABELE_FORWARD(void, throw_abstract_impl_not_imported_error, (std::string op, const char* module, const char* context),
                (std::move(op), module, context))
  ABELE_FORWARD(void, python_dispatcher,
                (const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack), (op, keys, stack))
  ABELE_FORWARD(bool, is_contiguous, (const c10::TensorImpl* t, at::MemoryFormat format), (t, format))
  ABELE_FORWARD(c10::SymBool, sym_is_contiguous, (const c10::TensorImpl* t, at::MemoryFormat format), (t, format))
  ABELE_FORWARD(bool, is_strides_like, (const c10::TensorImpl* t, at::MemoryFormat format), (t, format))
  ABELE_FORWARD(bool, is_non_overlapping_and_dense, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::Device, device, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(int64_t, dim, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::IntArrayRef, strides, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::IntArrayRef, sizes, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::SymIntArrayRef, sym_sizes, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::Layout, layout, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(int64_t, numel, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::SymInt, sym_numel, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::SymIntArrayRef, sym_strides, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(c10::SymInt, sym_storage_offset, (const c10::TensorImpl* t), (t))
  ABELE_FORWARD(void, trace_gpu_event_creation, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_FORWARD(void, trace_gpu_event_deletion, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_FORWARD(void, trace_gpu_event_record, (c10::DeviceType d, uintptr_t event, uintptr_t stream),
                (d, event, stream))
  ABELE_FORWARD(void, trace_gpu_event_wait, (c10::DeviceType d, uintptr_t event, uintptr_t stream), (d, event, stream))
  ABELE_FORWARD(void, trace_gpu_memory_allocation, (c10::DeviceType d, uintptr_t address), (d, address))
  ABELE_FORWARD(void, trace_gpu_memory_deallocation, (c10::DeviceType d, uintptr_t address), (d, address))
  ABELE_FORWARD(void, trace_gpu_stream_creation, (c10::DeviceType d, uintptr_t stream), (d, stream))
  ABELE_FORWARD(void, trace_gpu_device_synchronization, (c10::DeviceType d), (d))
  ABELE_FORWARD(void, trace_gpu_stream_synchronization, (c10::DeviceType d, uintptr_t stream), (d, stream))
  ABELE_FORWARD(void, trace_gpu_event_synchronization, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_FORWARD(void, reset_backward_hooks, (const c10::TensorImpl* t), (t))
#undef ABELE_FORWARD

 private:
  explicit PythonInterpreter(c10::impl::PyInterpreter* interpreter)
      : interpreter_(interpreter), python_(interpreter->vtable_) {
    interpreter->vtable_ = this;
  }
  /// The observer of the mode on top of this thread's stack, when it is one of ours.
  OperatorObserver* top() const {
    if (num_observers_ == 0) return nullptr;
    const int64_t depth = ModeStack::stack_len();
    if (depth == 0) return nullptr;
    PyObject* mode = ModeStack::get_stack_at(depth - 1)->ptr(interpreter_);
    std::lock_guard lock(mutex_);
    auto found = observers_.find(mode);
    return found == observers_.end() ? nullptr : found->second;
  }

  c10::impl::PyInterpreter* interpreter_;
  const c10::impl::PyInterpreterVTable* python_;
  mutable std::mutex mutex_;
  std::unordered_map<PyObject*, OperatorObserver*> observers_;
  std::atomic<size_t> num_observers_{0};
};

char stand_in;  // for programs without Python: never dereferenced, its address only has to be non-null

}  // namespace

/// What lives on torch's mode stack. Copies of the stack may outlive the capture, so all of it is owned together.
struct DispatchMode::Entry {
  Entry(OperatorObserver* observer, void* mode_object)
      : own_vtable(observer),
        own_interpreter(&own_vtable),
        python(mode_object != nullptr ? &PythonInterpreter::instance() : nullptr),
        interpreter(python != nullptr ? python->interpreter() : &own_interpreter),
        pointer(python != nullptr ? static_cast<PyObject*>(mode_object) : reinterpret_cast<PyObject*>(&stand_in)),
        object(pointer, interpreter) {
    if (python != nullptr) python->open(pointer, observer);
  }
  // The mode object belongs to the caller of capture(): its reference was never taken.
  ~Entry() { object.release(); }
  void close() {
    own_vtable.close();
    if (python != nullptr) python->close(pointer);
  }
  /// Python may have pushed the same object again in a holder of its own.
  bool isOnTop() const {
    const int64_t depth = ModeStack::stack_len();
    if (depth == 0) return false;
    const auto& top = ModeStack::get_stack_at(depth - 1);
    return &top->pyinterpreter() == interpreter && top->ptr(interpreter) == pointer;
  }

  OwnInterpreter own_vtable;
  c10::impl::PyInterpreter own_interpreter;
  PythonInterpreter* python;
  c10::impl::PyInterpreter* interpreter;
  PyObject* pointer;
  ModeObject object;
  ModeStack saved;  // the stack before the capture
};

DispatchMode::DispatchMode(OperatorObserver* observer, void* mode_object)
    : entry_(std::make_shared<Entry>(observer, mode_object)) {
  entry_->saved = ModeStack::get_state();
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<ModeObject>(entry_, &entry_->object));
}

DispatchMode::~DispatchMode() {
  entry_->close();
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
  if (!mode.entry_->isOnTop()) return;
  ModeStack::pop_stack();
  mode_ = &mode;
}
DispatchMode::Paused::~Paused() {
  if (mode_ == nullptr) return;
  ModeStack::push_non_infra_mode_onto_stack(std::shared_ptr<ModeObject>(mode_->entry_, &mode_->entry_->object));
}

}  // namespace abele::capture
