// For users of the library: what a forward may take and return beside plain tensors. A structure is an at::Tensor, or
// a std::optional, std::vector, std::array, std::tuple, std::pair or std::map<std::string, ...> of structures.
// Included by model.h, which says how models use it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "abele/export.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace abele::detail {

/// The tensors of structures in order, and how the structures are built: 't' a tensor, '-' nothing, [...] elements in
/// order, {<length>:<key><value>...} a map.
struct Flat {
  std::vector<at::Tensor> tensors;
  std::string form;
};
/// One micro-batch of a program.
using StructuredForward = std::function<Flat(const std::vector<at::Tensor>&, const std::string& form)>;

template <class T>
struct IsStructure : std::is_same<T, at::Tensor> {};
template <>
struct IsStructure<std::nullopt_t> : std::true_type {};
template <class T>
struct IsStructure<std::optional<T>> : IsStructure<T> {};
template <class T, class A>
struct IsStructure<std::vector<T, A>> : IsStructure<T> {};
template <class T, size_t n>
struct IsStructure<std::array<T, n>> : IsStructure<T> {};
template <class... T>
struct IsStructure<std::tuple<T...>> : std::conjunction<IsStructure<std::remove_cvref_t<T>>...> {};
template <class A, class B>
struct IsStructure<std::pair<A, B>> : std::conjunction<IsStructure<A>, IsStructure<B>> {};
template <class T, class C, class A>
struct IsStructure<std::map<std::string, T, C, A>> : IsStructure<T> {};

/// What a model can be called with.
template <class T>
concept Argument = IsStructure<std::remove_cvref_t<T>>::value || std::is_convertible_v<const T&, const at::Tensor&>;

// Apart ---------------------------------------------------------------------------------------------------------------
/// Adds a structure to a Flat.
template <class T>
void flatten(Flat& flat, const T& value);
template <class T>
void flattenEach(Flat& flat, const T& values) {
  flat.form += '[';
  for (const auto& value : values) flatten(flat, value);
  flat.form += ']';
}
template <class T>
struct Flattener {  // a tensor, or what converts to one
  static void add(Flat& flat, const T& value) { addTensor<std::conditional_t<true, at::Tensor, T>>(flat, value); }
  template <class Tensor>
  static void addTensor(Flat& flat, const Tensor& tensor) {
    flat.form += tensor.defined() ? 't' : '-';
    if (tensor.defined()) flat.tensors.push_back(tensor);
  }
};
template <>
struct Flattener<std::nullopt_t> {
  static void add(Flat& flat, std::nullopt_t) { flat.form += '-'; }
};
template <class T>
struct Flattener<std::optional<T>> {
  static void add(Flat& flat, const std::optional<T>& value) {
    if (value)
      flatten(flat, *value);
    else
      flat.form += '-';
  }
};
template <class T, class A>
struct Flattener<std::vector<T, A>> {
  static void add(Flat& flat, const std::vector<T, A>& values) { flattenEach(flat, values); }
};
template <class T, size_t n>
struct Flattener<std::array<T, n>> {
  static void add(Flat& flat, const std::array<T, n>& values) { flattenEach(flat, values); }
};
template <class... T>
struct Flattener<std::tuple<T...>> {
  static void add(Flat& flat, const std::tuple<T...>& values) {
    flat.form += '[';
    std::apply([&flat](const auto&... each) { (flatten(flat, each), ...); }, values);
    flat.form += ']';
  }
};
template <class A, class B>
struct Flattener<std::pair<A, B>> {
  static void add(Flat& flat, const std::pair<A, B>& values) { Flattener<std::tuple<A, B>>::add(flat, values); }
};
template <class T, class C, class A>
struct Flattener<std::map<std::string, T, C, A>> {
  static void add(Flat& flat, const std::map<std::string, T, C, A>& values) {
    flat.form += '{';
    for (const auto& [key, value] : values) {
      flat.form += std::to_string(key.size()) + ':' + key;
      flatten(flat, value);
    }
    flat.form += '}';
  }
};
template <class T>
void flatten(Flat& flat, const T& value) {
  Flattener<T>::add(flat, value);
}
template <class... T>
Flat flattened(const T&... values) {
  Flat flat;
  (flatten(flat, values), ...);
  return flat;
}
/// What forward returned: the elements of a vector or tuple are results of their own.
template <class T>
Flat flattenedResults(const T& value) {
  Flat flat;
  flatten(flat, value);
  return flat;
}

// Together again ------------------------------------------------------------------------------------------------------
/// Walks a form. What does not fit is E0708, which names `what` and both forms.
class ABELE_API FormReader {
 public:
  FormReader(std::string form, std::string what) : form_(std::move(form)), what_(std::move(what)) {}
  bool atEnd() const { return at_ == form_.size(); }
  /// Steps over nothing, if there is nothing here or no more.
  bool skipNothing() { return atEnd() || skip('-'); }
  bool skip(char c);
  void require(char c, const char* expected);
  /// Steps over a tensor and returns its number.
  size_t tensor();
  std::string key();
  /// Throws unless all was read.
  void finish();

 private:
  [[noreturn]] void refuse(const std::string& expected) const;
  std::string form_, what_;
  size_t at_ = 0, tensors_ = 0;
};

template <class T>
struct Builder {  // a tensor
  template <class Tensors>
  static T make(FormReader& reader, const Tensors& tensors) {
    if (reader.skip('-')) return T();
    return tensors[reader.tensor()];
  }
};
template <>
struct Builder<std::nullopt_t> {};
template <class T>
struct Builder<std::optional<T>> {
  template <class Tensors>
  static std::optional<T> make(FormReader& reader, const Tensors& tensors) {
    if (reader.skipNothing()) return std::nullopt;
    return Builder<T>::make(reader, tensors);
  }
};
template <class T, class A>
struct Builder<std::vector<T, A>> {
  template <class Tensors>
  static std::vector<T, A> make(FormReader& reader, const Tensors& tensors) {
    std::vector<T, A> values;
    reader.require('[', "a list");
    while (!reader.skip(']')) values.push_back(Builder<T>::make(reader, tensors));
    return values;
  }
};
template <class Result, class Tensors, class... Each>
Result makeEach(FormReader& reader, const Tensors& tensors, std::tuple<Each...>*) {
  reader.require('[', "a tuple");
  Result result{Builder<Each>::make(reader, tensors)...};  // braces: in order
  reader.require(']', "no more elements");
  return result;
}
template <class T, size_t n>
struct Builder<std::array<T, n>> {
  template <class Tensors>
  static std::array<T, n> make(FormReader& reader, const Tensors& tensors) {
    std::array<T, n> values;
    reader.require('[', "an array");
    for (T& value : values) value = Builder<T>::make(reader, tensors);
    reader.require(']', "no more elements");
    return values;
  }
};
template <class... T>
struct Builder<std::tuple<T...>> {
  template <class Tensors>
  static std::tuple<T...> make(FormReader& reader, const Tensors& tensors) {
    return makeEach<std::tuple<T...>>(reader, tensors, static_cast<std::tuple<T...>*>(nullptr));
  }
};
template <class A, class B>
struct Builder<std::pair<A, B>> {
  template <class Tensors>
  static std::pair<A, B> make(FormReader& reader, const Tensors& tensors) {
    return makeEach<std::pair<A, B>>(reader, tensors, static_cast<std::tuple<A, B>*>(nullptr));
  }
};
template <class T, class C, class A>
struct Builder<std::map<std::string, T, C, A>> {
  template <class Tensors>
  static std::map<std::string, T, C, A> make(FormReader& reader, const Tensors& tensors) {
    std::map<std::string, T, C, A> values;
    reader.require('{', "a map");
    while (!reader.skip('}')) {
      std::string key = reader.key();
      values.emplace(std::move(key), Builder<T>::make(reader, tensors));
    }
    return values;
  }
};
/// The results of a call as what forward returned. Programs of files do not know the form: a tensor or a list.
template <class Result, class Tensors>
Result structured(const Tensors& tensors, const std::optional<std::string>& form) {
  const std::string tensors_only(tensors.size(), 't');
  FormReader reader(form                  ? *form
                    : tensors.size() == 1 ? tensors_only
                                          : '[' + tensors_only + ']',
                    "the results of the model");
  Result result = Builder<Result>::make(reader, tensors);
  reader.finish();
  return result;
}

// Calls ---------------------------------------------------------------------------------------------------------------
/// E0708: the call gives so many tensors, and forward takes others.
[[noreturn]] ABELE_API void refuseArguments(size_t given, std::optional<size_t> taken);

/// The parameters of what can be called in one way only.
template <class... P>
struct Parameters {
  static constexpr bool are_structures = (IsStructure<std::remove_cvref_t<P>>::value && ...);
  /// A vector alone takes all tensors of a call.
  static constexpr bool take_list =
      std::is_same_v<std::tuple<std::remove_cvref_t<P>...>, std::tuple<std::vector<at::Tensor>>>;
  static constexpr bool are_tensors = (std::is_same_v<std::remove_cvref_t<P>, at::Tensor> && ...);
  template <class Fn, class Tensors>
  static Flat call(Fn& forward, const Tensors& tensors, const std::string& form) {
    if (are_tensors && form.size() == tensors.size() && form.size() != sizeof...(P))
      refuseArguments(form.size(), sizeof...(P));
    FormReader reader(form, "the arguments of forward");
    std::tuple<std::remove_cvref_t<P>...> arguments{Builder<std::remove_cvref_t<P>>::make(reader, tensors)...};
    reader.finish();
    return flattenedResults(
        std::apply([&forward](auto&... each) { return forward(static_cast<P&&>(each)...); }, arguments));
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
  return flattenedResults(forward(inputs[i]...));
}
/// Calls what takes as many tensors as there are inputs, up to 8; nothing where it does not.
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

/// Calls forward with structures where its parameters are known, else with a list of tensors or one tensor after the
/// other, whichever it takes.
template <class Fn, class Tensor>
Flat call(Fn& forward, const std::vector<Tensor>& inputs, const std::string& form) {
  using Known = decltype(parametersOf<Fn>());
  if constexpr (KnownStructures<Known>) {
    if constexpr (Known::take_list)
      return flattenedResults(forward(inputs));
    else
      return Known::call(forward, inputs, form);
  } else if constexpr (std::is_invocable_v<Fn&, const std::vector<Tensor>&>) {
    return flattenedResults(forward(inputs));
  } else {
    static_assert(takesSome<Fn, Tensor>(std::make_index_sequence<9>()),
                  "forward takes tensors or structures of them (abele/structure.h)");
    std::optional<Flat> results = callWithTensors<0>(forward, inputs);
    if (!results) refuseArguments(inputs.size(), {});
    return std::move(*results);
  }
}
template <class Fn>
StructuredForward wrapForward(Fn forward) {
  return [forward = std::move(forward)](const auto& inputs, const std::string& form) mutable {
    return call(forward, inputs, form);
  };
}

// Modules -------------------------------------------------------------------------------------------------------------
/// A module, or what points to one: std::shared_ptr, torch::nn::Linear and the other holders.
template <class M>
auto& moduleOf(M& module) {
  if constexpr (requires { *module; })
    return *module;
  else
    return module;
}
template <class M>
concept ModuleLike =
    std::is_base_of_v<torch::nn::Module,
                      std::remove_cvref_t<decltype(moduleOf(std::declval<std::remove_cvref_t<M>&>()))>>;

/// A module whose forward is a template, or has parameters that are no tensors, by what it takes.
template <class M>
struct ForwardOf {
  M* module;
  template <class... Tensor>
  auto operator()(const Tensor&... tensors) const -> decltype(std::declval<M&>().forward(tensors...)) {
    return module->forward(tensors...);
  }
};
template <class M>
auto forwardParameters() {
  if constexpr (requires { &M::forward; })
    return ParametersOf<decltype(&M::forward)>();
  else
    return ParametersOf<void>();
}
/// The forward of a module of which the caller keeps hold. Plain tensors are given as a program would give them, which
/// lets parameters have defaults.
template <class M>
StructuredForward wrapModule(M& module) {
  return [module = &module](const auto& inputs, const std::string& form) {
    using Known = decltype(forwardParameters<M>());
    ForwardOf<M> plain{module};
    if (form.size() == inputs.size())
      if (std::optional<Flat> results = callWithTensors<0>(plain, inputs)) return std::move(*results);
    if constexpr (KnownStructures<Known>) {
      const auto forward = [module](auto&&... each) { return module->forward(std::forward<decltype(each)>(each)...); };
      if constexpr (Known::take_list)
        return flattenedResults(forward(inputs));
      else
        return Known::call(forward, inputs, form);
    } else {
      refuseArguments(inputs.size(), {});
    }
  };
}

}  // namespace abele::detail
