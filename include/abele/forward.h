// How models call a forward: a callable that takes tensors or structures of tensors, or the forward of a module.
// Included by model.h.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "abele/export.h"
#include "abele/structure.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}
namespace c10 {
template <typename T>
class ArrayRef;
}

namespace abele::detail {

/// One micro-batch of a program.
using StructuredForward = std::function<Flat(const std::vector<at::Tensor>&, const std::string& form)>;

// Calls ---------------------------------------------------------------------------------------------------------------
/// Throws E0708: the call passes `given` tensors, but forward takes `taken`.
[[noreturn]] ABELE_API void refuseArguments(size_t given, std::optional<size_t> taken);
/// Throws E0708: forward is an empty std::function or a null pointer.
[[noreturn]] ABELE_API void refuseEmptyForward();
/// Throws E0708: a pointer to a module or a module holder is null.
[[noreturn]] ABELE_API void refuseEmptyModule();

/// The results of a call of forward.
template <class Fn, class... Arguments>
Flat resultsOf(Fn& forward, Arguments&&... arguments) {
  using Result = std::invoke_result_t<Fn&, Arguments...>;
  static_assert(!std::is_void_v<Result>, "forward returns nothing; let it return its results");
  if constexpr (!std::is_void_v<Result>) return flattenedResults(forward(std::forward<Arguments>(arguments)...));
}

/// The parameter types of a callable that has a single signature.
template <class... P>
struct Parameters {
  /// A single list takes all tensors of a call: a std::vector, or an at::TensorList.
  static constexpr bool take_list =
      std::is_same_v<std::tuple<std::remove_cvref_t<P>...>, std::tuple<std::vector<at::Tensor>>> ||
      std::is_same_v<std::tuple<std::remove_cvref_t<P>...>, std::tuple<c10::ArrayRef<at::Tensor>>>;
  static constexpr bool are_structures = take_list || (IsStructure<std::remove_cvref_t<P>>::value && ...);
  static constexpr bool are_tensors = (std::is_same_v<std::remove_cvref_t<P>, at::Tensor> && ...);
  template <class Fn, class Tensors>
  static Flat call(Fn& forward, const Tensors& tensors, const std::string& form) {
    if (are_tensors && form.size() == tensors.size() && form.size() != sizeof...(P))
      refuseArguments(form.size(), sizeof...(P));
    FormReader reader(form, "the arguments of forward");
    std::tuple<std::remove_cvref_t<P>...> arguments{Builder<std::remove_cvref_t<P>>::make(reader, tensors)...};
    reader.finish();
    return std::apply([&forward](auto&... each) { return resultsOf(forward, static_cast<P&&>(each)...); }, arguments);
  }
  template <class Fn, class Tensors>
  static Flat callWithList(Fn& forward, const Tensors& tensors) {
    // A copy: forward may change it. Its type follows from the arguments, because at::Tensor is incomplete here.
    std::vector own(tensors.begin(), tensors.end());
    return callWithOwn<P...>(forward, own);
  }

 private:
  template <class List, class Fn, class Tensors>
  static Flat callWithOwn(Fn& forward, Tensors& tensors) {
    if constexpr (std::is_rvalue_reference_v<List>)
      return resultsOf(forward, std::move(tensors));
    else
      return resultsOf(forward, tensors);
  }
};
template <class Fn>
struct ParametersOf {};
template <class R, class... P>
struct ParametersOf<R (*)(P...)> : Parameters<P...> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...)> : Parameters<P...> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) const> : Parameters<P...> {};
template <class R, class... P>
struct ParametersOf<R (*)(P...) noexcept> : Parameters<P...> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) noexcept> : Parameters<P...> {};
template <class R, class C, class... P>
struct ParametersOf<R (C::*)(P...) const noexcept> : Parameters<P...> {};

template <class Fn>
auto parametersOf() {
  if constexpr (requires { &Fn::operator(); })
    return ParametersOf<decltype(&Fn::operator())>();
  else
    return ParametersOf<Fn>();
}
template <class P>
concept KnownStructures = requires { P::are_structures; } && P::are_structures;

template <class Tensor, size_t>
using Repeat = const Tensor&;
template <class Fn, class Tensor, size_t... i>
constexpr bool takes(std::index_sequence<i...>) {
  return std::is_invocable_v<Fn&, Repeat<Tensor, i>...>;
}
template <class Fn, class Tensor, size_t... i>
Flat spread(Fn& forward, const std::vector<Tensor>& inputs, std::index_sequence<i...>) {
  return resultsOf(forward, inputs[i]...);
}
/// Calls forward if it takes this number of inputs as separate tensors, up to 8. Otherwise returns nothing.
template <size_t count, class Fn, class Tensor>
std::optional<Flat> callWithTensors(Fn& forward, const std::vector<Tensor>& inputs) {
  if constexpr (takes<Fn, Tensor>(std::make_index_sequence<count>()))
    if (inputs.size() == count) return spread(forward, inputs, std::make_index_sequence<count>());
  if constexpr (count < 8)
    return callWithTensors<count + 1>(forward, inputs);
  else
    return std::nullopt;
}
template <class Fn, class Tensor, size_t... i>
constexpr bool takesSome(std::index_sequence<i...>) {
  return (takes<Fn, Tensor>(std::make_index_sequence<i>()) || ...);
}

/// Calls forward with structures if its parameters are known. Otherwise calls it with separate tensors or with a list,
/// whichever it takes.
template <class Fn, class Tensor>
Flat call(Fn& forward, const std::vector<Tensor>& inputs, const std::string& form) {
  using Known = decltype(parametersOf<Fn>());
  if constexpr (KnownStructures<Known>) {
    if constexpr (Known::take_list) {
      return Known::callWithList(forward, inputs);
    } else {
      // Passes plain tensors as a program would, so that parameters may have defaults.
      if (form.size() == inputs.size())
        if (std::optional<Flat> results = callWithTensors<0>(forward, inputs)) return std::move(*results);
      return Known::call(forward, inputs, form);
    }
  } else if constexpr (takesSome<Fn, Tensor>(std::index_sequence<1, 2, 3, 4, 5, 6, 7, 8>())) {
    // Tries separate tensors first, because the test whether a generic lambda takes a list compiles its body for a
    // list.
    std::optional<Flat> results = callWithTensors<1>(forward, inputs);
    if (!results) refuseArguments(inputs.size(), {});
    return std::move(*results);
  } else {
    static_assert(std::is_invocable_v<Fn&, const std::vector<Tensor>&>,
                  "forward takes tensors or structures of them (abele/structure.h)");
    return resultsOf(forward, inputs);
  }
}
template <class Fn>
StructuredForward wrapForward(Fn forward) {
  // A type that can be made from nullptr may be empty. A lambda cannot be empty, although it compares with nullptr.
  if constexpr (std::is_constructible_v<Fn, std::nullptr_t> && requires { forward == nullptr; })
    if (forward == nullptr) refuseEmptyForward();
  return [forward = std::move(forward)](const auto& inputs, const std::string& form) mutable {
    return call(forward, inputs, form);
  };
}

// Modules -------------------------------------------------------------------------------------------------------------
/// Returns the module itself: the argument is a module, a std::shared_ptr to one, or a holder such as
/// torch::nn::Linear. The module of a const holder is not const, as with std::shared_ptr.
template <class M>
auto& moduleOf(M& module) {
  if constexpr (requires { *module; }) {
    if constexpr (std::is_constructible_v<bool, M&>)
      if (!module) refuseEmptyModule();
    if constexpr (std::is_const_v<M> && requires { *module.ptr(); })
      return *module.ptr();
    else
      return *module;
  } else {
    return module;
  }
}
template <class M>
using ModuleIn = std::remove_cvref_t<decltype(moduleOf(std::declval<std::remove_cvref_t<M>&>()))>;
/// TorchScript: the type that torch::jit::load returns.
template <class M>
concept ScriptLike = std::is_same_v<ModuleIn<M>, torch::jit::Module>;
/// torch::nn::AnyModule: holds any module and calls its forward.
template <class M>
concept AnyModuleLike = !ScriptLike<M> && requires(ModuleIn<M>& any) {
  any.is_empty();
  any.type_info();
  { *any.ptr() } -> std::same_as<torch::nn::Module&>;
};
template <class M>
concept ModuleLike = ScriptLike<M> || AnyModuleLike<M> || std::is_base_of_v<torch::nn::Module, ModuleIn<M>>;

/// The module whose parameters and buffers are a model's weights. owner: keeps a module alive that was made for the
/// call.
struct Weights {
  torch::nn::Module& module;
  std::shared_ptr<torch::nn::Module> owner = nullptr;
};
ABELE_API Weights weightsOfScript(const torch::jit::Module& script);
ABELE_API StructuredForward forwardOfScript(const torch::jit::Module& script);
template <class M>
Weights weightsOf(M& module) {
  auto& own = moduleOf(module);
  if constexpr (ScriptLike<M>) {
    return weightsOfScript(own);
  } else if constexpr (AnyModuleLike<M>) {
    if (own.is_empty()) refuseEmptyModule();
    std::shared_ptr<torch::nn::Module> held = own.ptr();
    return {*held, held};
  } else {
    // parameters() of a constant module returns tensors that may be written, so the cast grants nothing new.
    return {const_cast<ModuleIn<M>&>(own)};
  }
}

/// A module whose forward is a template or takes parameters other than tensors. The arguments select the overload.
template <class M>
struct ForwardOf {
  M* module;
  template <class... Tensor>
  auto operator()(const Tensor&... tensors) const -> decltype(std::declval<M&>().forward(tensors...)) {
    return module->forward(tensors...);
  }
};
/// True for a module whose only forward is not const.
template <class R, class C, class... P>
std::true_type changesModule(R (C::*)(P...));
template <class R, class C, class... P>
std::true_type changesModule(R (C::*)(P...) noexcept);
template <class M>
concept ChangingForward = requires { changesModule(&M::forward); };
template <class M>
auto forwardParameters() {
  if constexpr (requires { &M::forward; })
    return ParametersOf<decltype(&M::forward)>();
  else
    return ParametersOf<void>();
}
/// The forward of the module behind a pointer. Passes plain tensors as a program would, so that parameters may have
/// defaults.
template <class Pointer>
StructuredForward wrapModule(Pointer module) {
  using M = std::remove_reference_t<decltype(*module)>;
  static_assert(!std::is_const_v<M> || !ChangingForward<M>,
                "this module is const, and its forward is not; pass a module that is no constant");
  return [module = std::move(module)](const auto& inputs, const std::string& form) {
    using Known = decltype(forwardParameters<M>());
    ForwardOf<M> plain{&*module};
    // Starts at 1 for a template with any number of arguments, whose body need not compile for 0.
    constexpr size_t least = KnownStructures<Known> ? 0 : 1;
    if (form.size() == inputs.size())
      if (std::optional<Flat> results = callWithTensors<least>(plain, inputs)) return std::move(*results);
    if constexpr (KnownStructures<Known>) {
      const auto forward = [&module](auto&&... each) -> decltype(auto) {
        return module->forward(std::forward<decltype(each)>(each)...);
      };
      if constexpr (Known::take_list)
        return Known::callWithList(forward, inputs);
      else
        return Known::call(forward, inputs, form);
    } else {
      refuseArguments(inputs.size(), {});
    }
  };
}
/// The module's own forward. The caller keeps the module alive, unless it is a TorchScript module or an AnyModule.
template <class M>
StructuredForward ownForward(M& module) {
  auto& own = moduleOf(module);
  if constexpr (ScriptLike<M>)
    return forwardOfScript(own);
  else if constexpr (AnyModuleLike<M>)
    return wrapModule(std::make_shared<ModuleIn<M>>(own));
  else
    return wrapModule(&own);
}

}  // namespace abele::detail
