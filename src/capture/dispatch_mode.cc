// The only file that depends on c10's private interfaces of dispatch modes. Tried with torch 2.13.
#include "capture/dispatch_mode.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/dispatch/ObservedOperators.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "capture/arguments.h"

namespace abele::capture {
namespace {

using ModeStack = c10::impl::TorchDispatchModeTLS;
using ModeObject = c10::impl::PyObject_TorchDispatchMode;

[[noreturn]] void unreachable(const char* what) {
  throw std::logic_error(std::string("abele's dispatch mode: unexpected call of ") + what);
}

// With these keys the dispatcher comes to torch's Python key, and from there to the mode on top of the stack. Torch
// itself sets them while the stack has modes.
bool areKeysIncluded() { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python); }
void includeKeys(bool included) {
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Python, included);
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::PythonTLSSnapshot, included);
}

/// The number of torch's own modes. They are below all others on the stack.
int64_t numInfraModes() {
  int64_t count = 0;
  for (int8_t key = 0; key < static_cast<int8_t>(c10::impl::TorchDispatchModeKey::NUM_MODE_KEYS); ++key)
    count += ModeStack::get_mode(static_cast<c10::impl::TorchDispatchModeKey>(key)) ? 1 : 0;
  return count;
}

}  // namespace

bool isComposite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

namespace {
/// Code that pops the last mode also removes the dispatch keys. This puts them back, and is called when that code
/// releases the mode.
void keepSeeing();
}  // namespace

/// Our entry of torch's mode stack. Copies of the stack may outlive the capture, so the entry owns all that it needs.
struct DispatchMode::Entry : std::enable_shared_from_this<DispatchMode::Entry> {
  Entry(OperatorObserver* observer, void* mode_object);
  // The mode object belongs to the caller of capture(): its reference was never taken.
  ~Entry() { object.release(); }
  void close();

  /// Python may have pushed the same object again in a holder of its own.
  bool isOurs(const std::shared_ptr<ModeObject>& mode) const {
    return &mode->pyinterpreter() == interpreter && mode->ptr(interpreter) == pointer;
  }
  bool isOnStack() const {
    for (int64_t i = 0; i < ModeStack::stack_len(); ++i)
      if (isOurs(ModeStack::get_stack_at(i))) return true;
    return false;
  }
  // Modes that the program pushes come first, those that were there before the capture last.
  void putOnStack() {
    const std::vector<std::shared_ptr<ModeObject>> above = popAbove(num_modes_below);
    ModeStack::push_non_infra_mode_onto_stack(
        std::shared_ptr<ModeObject>(&object, [kept = shared_from_this()](ModeObject*) { keepSeeing(); }));
    for (auto mode = above.rbegin(); mode != above.rend(); ++mode) ModeStack::push_non_infra_mode_onto_stack(*mode);
  }
  void takeOffStack() {
    std::vector<std::shared_ptr<ModeObject>> above;
    while (isOnStack()) above.push_back(ModeStack::pop_stack());
    for (auto mode = above.rbegin(); mode != above.rend(); ++mode)
      if (!isOurs(*mode)) ModeStack::push_non_infra_mode_onto_stack(*mode);
  }
  static std::vector<std::shared_ptr<ModeObject>> popAbove(int64_t depth) {
    std::vector<std::shared_ptr<ModeObject>> popped;
    const int64_t num_infra = numInfraModes();
    while (ModeStack::stack_len() - num_infra > depth) popped.push_back(ModeStack::pop_stack());
    return popped;
  }

  OperatorObserver* observer;
  std::unique_ptr<c10::impl::PyInterpreterVTable> own_vtable;
  c10::impl::PyInterpreter own_interpreter;
  bool has_python;
  c10::impl::PyInterpreter* interpreter;
  PyObject* pointer;
  ModeObject object;
  int64_t num_modes_below = 0;
};

namespace {

using Entry = DispatchMode::Entry;

constexpr std::string_view kActiveName = "abele capture";

/// Torch 2.13 tells kinds apart by the address of a name; older ones count theirs from 0 on.
template <class Kind>
constexpr Kind ownKind() {
  if constexpr (std::is_enum_v<Kind>)
    return static_cast<Kind>(0xAB);
  else
    return Kind(&kActiveName);
}
constexpr auto kActive = ownKind<c10::DebugInfoKind>();

/// Which capture sees this thread's operators, if any. Torch carries it to the threads that work for this one, together
/// with the keys, the mode stack and the RecordFunction callbacks.
struct Active final : c10::DebugInfoBase {
  explicit Active(std::shared_ptr<Entry> e) : entry(std::move(e)) {}
  std::shared_ptr<Entry> entry;
};

Entry* activeEntry() {
  auto* active = static_cast<Active*>(c10::ThreadLocalDebugInfo::get(kActive));
  return active == nullptr ? nullptr : active->entry.get();
}

void keepSeeing() {
  if (activeEntry() != nullptr && !areKeysIncluded()) includeKeys(true);
}

/// The capture sees nothing: our mode is off the stack, the keys are as torch sets them.
class Off {
 public:
  explicit Off(Entry& entry) : guard_(kActive, none()), entry_(entry.shared_from_this()), was_on_(entry.isOnStack()) {
    if (was_on_) entry.takeOffStack();
    includeKeys(ModeStack::any_modes_set());
  }
  ~Off() {
    if (was_on_) entry_->putOnStack();
    includeKeys(true);
  }
  Off(const Off&) = delete;
  Off& operator=(const Off&) = delete;

 private:
  static std::shared_ptr<Active> none() {
    static const auto none = std::make_shared<Active>(nullptr);
    return none;
  }
  c10::DebugInfoGuard guard_;
  std::shared_ptr<Entry> entry_;
  bool was_on_;
};

/// Hands a call to the observer.
void observe(Entry& entry, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Off off(entry);
  // Thread-local state that someone saved during the capture may bring the mode back after it.
  if (entry.observer == nullptr) return op.callBoxed(stack);
  entry.observer->onOperator(op, stack);
}

/// The copy that autograd makes of a tensor's metadata. There is nothing to record.
c10::intrusive_ptr<c10::TensorImpl> detachUnobserved(Entry& entry, const c10::TensorImpl* self) {
  const Off off(entry);
  return self->shallow_copy_and_detach(self->version_counter(), self->allow_tensor_metadata_change());
}

// --- when the mode is on the stack -----------------------------------------------------------------------------------
// ATen asks in many places whether a mode is on the stack (isTensorSubclassLike), and then chooses other operators. So
// ours is off the stack while a composite operator or autograd works, and on it again while one of the operators that
// they call must be seen. The keys stay included all the time: the dispatcher computes its way before it tells
// RecordFunction's callbacks. Programs themselves find the mode on the stack: Python pushes, pops and stashes modes,
// and torch takes the keys away when it leaves an empty stack.

/// Composite operators come to the mode only where nothing above it decomposes them.
bool isDecomposedAbove(c10::ArrayRef<const c10::IValue> inputs) {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  if (local.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return true;
  c10::DispatchKeySet keys;
  forEachTensorOf(inputs, [&](const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  return (keys - local.excluded_).has_any(c10::autograd_dispatch_keyset);
}

bool isSeen(const Entry& entry, const at::RecordFunction& function, const c10::OperatorName& name) {
  if (entry.observer == nullptr) return true;
  const auto op = c10::Dispatcher::singleton().findOp(name);
  if (!op || !isComposite(*op)) return true;
  // A mode of the program answers those questions with yes in eager, too; ours must be below it when it is popped.
  if (ModeStack::stack_len() > (entry.isOnStack() ? 1 : 0)) return true;
  return !isDecomposedAbove(inputsOf(function));
}

bool isShownFormula(std::string_view running) {
  if (running.starts_with("ProdBackward") && !c10::GradMode::is_enabled()) return false;
  static constexpr std::string_view table[] = {
#define ABELE_SHOWN_FORMULA(name) name,
#include "capture/shown_formulas.def"
#undef ABELE_SHOWN_FORMULA
  };
  return std::ranges::find(table, running) != std::end(table);
}

/// Whether the mode has to be on the stack while this runs; none: as it is.
std::optional<bool> isNeeded(const Entry& entry, const at::RecordFunction& function) {
  if (isShownFormula(function.name())) return true;
  const auto name = function.operator_name();
  return name ? std::optional(isSeen(entry, function, *name)) : std::nullopt;
}

/// Puts the stack back when the operator has run.
struct ChangedStack final : at::ObserverContext {
  explicit ChangedStack(std::shared_ptr<Entry> e, bool on) : entry(std::move(e)), put_on(on) {}
  std::shared_ptr<Entry> entry;
  bool put_on;
};

void putOn(Entry& entry, bool on) {
  on ? entry.putOnStack() : entry.takeOffStack();
  includeKeys(true);
}

std::unique_ptr<at::ObserverContext> beforeOperator(const at::RecordFunction& function) {
  Entry* entry = activeEntry();
  const std::optional<bool> on = entry == nullptr ? std::nullopt : isNeeded(*entry, function);
  if (!on || *on == entry->isOnStack()) return nullptr;
  putOn(*entry, *on);
  return std::make_unique<ChangedStack>(entry->shared_from_this(), *on);
}

void afterOperator(const at::RecordFunction&, at::ObserverContext* context) {
  if (auto* changed = static_cast<ChangedStack*>(context)) putOn(*changed->entry, !changed->put_on);
}

/// Torch tells no callback of these, so they find no mode on the stack: they pass as if the keys were not included.
void callUnobserved(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const int64_t depth = ModeStack::stack_len();
  if (depth > 0) return ModeStack::get_stack_at(depth - 1)->pyinterpreter()->dispatch(op, stack);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python), stack);
}

void registerUnobserved() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static const auto* handles = [&dispatcher] {
    auto* made = new std::vector<c10::RegistrationHandleRAII>;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames())
      if (std::string_view(name.name).starts_with("profiler::") && !c10::ObservedOperators::isObserved(name))
        made->push_back(dispatcher.registerImpl(name, c10::DispatchKey::Python,
                                                c10::KernelFunction::makeFromBoxedFunction<callUnobserved>(),
                                                std::nullopt, nullptr, "abele"));
    return made;
  }();
  static_cast<void>(handles);
}

// --- the entry of the stack ------------------------------------------------------------------------------------------

/// Torch calls it where the top mode of the stack is ours. In a process with Python it stands before Python's
/// interpreter: Python code looks at the mode stack (printing, torch's own utilities) and accepts only modes of its own
/// interpreter. Calls that arrive while the top mode is ours go to the observer; other calls pass to Python unchanged.
/// It is in place while something is captured, and never freed: a thread may have just found it. Without Python it is
/// an "interpreter" of its own. Torch asks it only to dispatch and to detach: no tensor has it as its own.
class Interpreter final : public c10::impl::PyInterpreterVTable {
 public:
  static Interpreter& beforePython() {
    static auto* installed = new Interpreter(c10::impl::getGlobalPyInterpreter());
    return *installed;
  }
  explicit Interpreter(Entry* entry) : entry_(entry) {}
  c10::impl::PyInterpreter* interpreter() { return interpreter_; }
  /// Counts the captures that are running: those of one thread, inside one another (capture.cc).
  void open() {
    if (num_captures_++ == 0) interpreter_->vtable_ = this;
  }
  void close() {
    if (--num_captures_ == 0) interpreter_->vtable_ = python_;
  }

  std::string name() const override { return python_ != nullptr ? python_->name() : "abele"; }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    Entry* entry = called();
    entry != nullptr ? observe(*entry, op, stack) : python_->dispatch(op, stack);
  }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    Entry* entry = called();
    return entry != nullptr ? detachUnobserved(*entry, self) : python_->detach(self);
  }
  void decref(PyObject* object) const override {
    if (python_ == nullptr) return;
    python_->decref(object);
    if (num_captures_ > 0) keepSeeing();
  }
  size_t refcnt(PyObject* object) const override { return python_ != nullptr ? python_->refcnt(object) : 1; }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override {
    return python_ != nullptr && python_->try_incref(slot);
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    if (python_ == nullptr) throw std::runtime_error("no kernel for the shapes of " + op);
    python_->throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
// Without Python, torch never makes calls of the first kind, and calls of the second kind do nothing.
#define ABELE_FORWARD(result, name, parameters, arguments) \
  result name parameters const override {                  \
    if (python_ == nullptr) unreachable(#name);            \
    return python_->name arguments;                        \
  }
#define ABELE_TELL(name, parameters, arguments)      \
  void name parameters const override {              \
    if (python_ != nullptr) python_->name arguments; \
  }
  ABELE_FORWARD(void, python_op_registration_trampoline,
                (const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack, bool with_keys, bool with_op),
                (op, key, keys, stack, with_keys, with_op))
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
  ABELE_TELL(incref, (PyObject * object), (object))
  ABELE_TELL(reportErrorCallback, (PyObject * callback, c10::DispatchKey key), (callback, key))
  ABELE_TELL(trace_gpu_event_creation, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_TELL(trace_gpu_event_deletion, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_TELL(trace_gpu_event_record, (c10::DeviceType d, uintptr_t event, uintptr_t stream), (d, event, stream))
  ABELE_TELL(trace_gpu_event_wait, (c10::DeviceType d, uintptr_t event, uintptr_t stream), (d, event, stream))
  ABELE_TELL(trace_gpu_memory_allocation, (c10::DeviceType d, uintptr_t address), (d, address))
  ABELE_TELL(trace_gpu_memory_deallocation, (c10::DeviceType d, uintptr_t address), (d, address))
  ABELE_TELL(trace_gpu_stream_creation, (c10::DeviceType d, uintptr_t stream), (d, stream))
  ABELE_TELL(trace_gpu_device_synchronization, (c10::DeviceType d), (d))
  ABELE_TELL(trace_gpu_stream_synchronization, (c10::DeviceType d, uintptr_t stream), (d, stream))
  ABELE_TELL(trace_gpu_event_synchronization, (c10::DeviceType d, uintptr_t event), (d, event))
  ABELE_TELL(reset_backward_hooks, (const c10::TensorImpl* t), (t))
#undef ABELE_FORWARD
#undef ABELE_TELL

 private:
  explicit Interpreter(c10::impl::PyInterpreter* interpreter)
      : interpreter_(interpreter), python_(interpreter->vtable_) {}
  /// The capture that a call is for: its mode is on top of the stack. Also where no mode is: then a tensor led here.
  Entry* called() const {
    if (python_ == nullptr) return entry_;
    Entry* entry = num_captures_ == 0 ? nullptr : activeEntry();
    const int64_t depth = ModeStack::stack_len();
    return entry == nullptr || depth == 0 || entry->isOurs(ModeStack::get_stack_at(depth - 1)) ? entry : nullptr;
  }

  Entry* entry_ = nullptr;  // without Python: the one capture that has it
  c10::impl::PyInterpreter* interpreter_ = nullptr;
  const c10::impl::PyInterpreterVTable* python_ = nullptr;
  std::atomic<int64_t> num_captures_{0};
};

char stand_in;  // for programs without Python: never dereferenced, its address only has to be non-null

}  // namespace

DispatchMode::Entry::Entry(OperatorObserver* o, void* mode_object)
    : observer(o),
      own_vtable(std::make_unique<Interpreter>(this)),
      own_interpreter(own_vtable.get()),
      has_python(mode_object != nullptr),
      interpreter(has_python ? Interpreter::beforePython().interpreter() : &own_interpreter),
      pointer(has_python ? static_cast<PyObject*>(mode_object) : reinterpret_cast<PyObject*>(&stand_in)),
      object(pointer, interpreter),
      num_modes_below(ModeStack::stack_len() - numInfraModes()) {
  if (has_python) Interpreter::beforePython().open();
}

void DispatchMode::Entry::close() {
  observer = nullptr;
  if (has_python) Interpreter::beforePython().close();
}

/// Everything of torch's thread-local state that a capture changes.
struct DispatchMode::Before {
  ModeStack stack = ModeStack::get_state();
  bool are_keys_included = areKeysIncluded();
};

DispatchMode::DispatchMode(OperatorObserver* observer, void* mode_object)
    : before_(std::make_unique<Before>()), entry_(std::make_shared<Entry>(observer, mode_object)) {
  registerUnobserved();
  active_ = std::make_unique<c10::DebugInfoGuard>(kActive, std::make_shared<Active>(entry_));
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(beforeOperator, afterOperator)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  putOn(*entry_, true);
}

DispatchMode::~DispatchMode() {
  entry_->close();
  at::removeCallback(callback_);
  active_.reset();
  // Also right when the program left modes of its own behind.
  ModeStack::set_state(std::move(before_->stack));
  includeKeys(before_->are_keys_included);
}

DispatchMode::Hidden::Hidden(const DispatchMode& mode) : mode_(mode) { putOn(*mode.entry_, false); }
DispatchMode::Hidden::~Hidden() { putOn(*mode_.entry_, true); }

struct DispatchMode::Resumed::Scope {
  explicit Scope(const std::shared_ptr<Entry>& entry) : guard(kActive, std::make_shared<Active>(entry)) {}
  c10::DebugInfoGuard guard;
  bool were_keys_included = areKeysIncluded();
};
DispatchMode::Resumed::Resumed(const DispatchMode& mode) : scope_(std::make_unique<Scope>(mode.entry_)) {
  includeKeys(true);
}
DispatchMode::Resumed::~Resumed() { includeKeys(scope_->were_keys_included); }

struct DispatchMode::Paused::Scope : Off {
  using Off::Off;
};
DispatchMode::Paused::Paused(const DispatchMode& mode) {
  if (activeEntry() == mode.entry_.get()) scope_ = std::make_unique<Scope>(*mode.entry_);
}
DispatchMode::Paused::~Paused() = default;

}  // namespace abele::capture
