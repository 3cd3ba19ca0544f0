// Python module operator_sequence: the operators that a function runs in eager PyTorch, at the level at which a capture
// sees them. No mode is involved: a callback of RecordFunction watches.
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

namespace {

struct Event {
  std::string name;
  bool may_call = false;    // has a kernel above the backends, which may call operators of its own
  bool is_wrapper = false;  // which calls this operator again, as autocast does
};

struct Watch {
  std::vector<std::string> names;  // in the order in which the operators came to a backend
  std::vector<Event> running;
  int inside = 0;  // running operators that backends' kernels have called
};
thread_local Watch* watch = nullptr;

struct Running final : at::ObserverContext {
  explicit Running(bool event) : is_event(event) {}
  bool is_event;
};

bool isComposite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool isExcluded(c10::DispatchKey key) { return c10::impl::tls_local_dispatch_key_set().excluded_.has(key); }

bool takesTensors(const c10::OperatorHandle& op) {
  for (const c10::Argument& argument : op.schema().arguments())
    if (argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
        argument.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return true;
  return false;
}

bool hasKernelAbove(const c10::OperatorHandle& op) {
  if (!takesTensors(op)) return false;
  const bool casts = c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::AutocastCPU) &&
                     !isExcluded(c10::DispatchKey::AutocastCPU);
  return casts || op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
}

bool isEvent(const std::string& name) {
  if (watch->inside > 0) return false;
  if (watch->running.empty()) return true;
  Event& caller = watch->running.back();
  if (!caller.may_call || isExcluded(c10::DispatchKey::AutogradFunctionality)) return false;
  caller.is_wrapper = caller.is_wrapper || caller.name == name;
  return true;
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
  const auto name = watch == nullptr ? std::nullopt : function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  if (!op || isComposite(*op)) return nullptr;
  const std::string full = name->overload_name.empty() ? name->name : name->name + "." + name->overload_name;
  const bool is_event = isEvent(full);
  if (is_event)
    watch->running.push_back({full, hasKernelAbove(*op)});
  else
    ++watch->inside;
  return std::make_unique<Running>(is_event);
}

void after(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr || watch == nullptr) return;
  if (!static_cast<Running*>(context)->is_event) {
    --watch->inside;
    return;
  }
  if (!watch->running.back().is_wrapper) watch->names.push_back(watch->running.back().name);
  watch->running.pop_back();
}

/// Calls function(); returns what it returned and the names of the operators, in order.
std::pair<pybind11::object, std::vector<std::string>> watched(const pybind11::function& function) {
  struct Scope {
    Scope()
        : handle(at::addThreadLocalCallback(
              at::RecordFunctionCallback(before, after).scopes({at::RecordScope::FUNCTION}))) {
      watch = &seen;
    }
    ~Scope() {
      watch = nullptr;
      at::removeCallback(handle);
    }
    Watch seen;
    at::CallbackHandle handle;
  } scope;
  pybind11::object result = function();
  return {std::move(result), std::move(scope.seen.names)};
}

/// Does it return nothing but other looks at its operands' memory?
bool isView(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  for (const c10::Argument& result : op.schema().returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  return op.hasTag(at::Tag::inplace_view);
}

}  // namespace

PYBIND11_MODULE(operator_sequence, m) {
  m.def("watched", watched);
  m.def("isView", isView);
}
