// For users of the library: arguments and results of a forward. A structure is a tensor, or one of these types that
// holds structures: std::optional, std::vector, std::array, std::tuple, std::pair, std::map<std::string, ...>,
// std::unordered_map, torch::OrderedDict, torch::data::Example, or a struct of your own:
//
//   struct Batch {
//     at::Tensor ids, mask;
//     auto fields() { return std::tie(ids, mask); }
//   };
//
// A structure may also be a bool, a number, an enumerator or a text. The program is compiled for its value, and later
// calls must pass the same value (E0704). Included by model.h, which says how models use structures.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abele/export.h"

namespace at {
class Tensor;
}
namespace torch {
template <typename Key, typename Value>
class OrderedDict;
namespace data {
template <typename Data, typename Target>
struct Example;
}
}  // namespace torch

namespace abele::detail {

/// The tensors of structures in order, and the form of the structures: 't' a tensor, '-' nothing, [...] elements in
/// order, {<length>:<key><value>...} a map in its own order (by sorted keys if it has no order), =<length>:<text> a
/// value other than a tensor.
struct ABELE_API Flat {
  // Compiled in the library: at::Tensor may be incomplete here.
  Flat();
  Flat(std::vector<at::Tensor> tensors, std::string form);
  Flat(const Flat&);
  Flat(Flat&&) noexcept;
  Flat& operator=(const Flat&);
  Flat& operator=(Flat&&) noexcept;
  ~Flat();

  std::vector<at::Tensor> tensors;
  std::string form;
};

/// A value other than a tensor. It is known when the program is compiled.
template <class T>
concept Constant = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<const T&, std::string_view>;
/// A struct whose fields() returns references to its members in a tuple.
template <class T>
concept HasFields =
    std::default_initializable<T> && requires(T& value) { std::tuple_size<decltype(value.fields())>(); };

template <class T>
struct AreStructures : std::false_type {};
template <class... T>
struct AreStructures<std::tuple<T...>>;

template <class T>
constexpr bool isStructure() {
  if constexpr (HasFields<T>)
    return AreStructures<decltype(std::declval<T&>().fields())>::value;
  else
    return std::is_same_v<T, at::Tensor> || Constant<T>;
}
template <class T>
struct IsStructure : std::bool_constant<isStructure<T>()> {};
template <class... T>
struct AreStructures<std::tuple<T...>> : std::conjunction<IsStructure<std::remove_cvref_t<T>>...> {};
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
template <class T, class H, class E, class A>
struct IsStructure<std::unordered_map<std::string, T, H, E, A>> : IsStructure<T> {};
template <class T>
struct IsStructure<torch::OrderedDict<std::string, T>> : IsStructure<T> {};
template <class Data, class Target>
struct IsStructure<torch::data::Example<Data, Target>> : std::conjunction<IsStructure<Data>, IsStructure<Target>> {};

/// An argument of a model's call.
template <class T>
concept Argument = IsStructure<std::remove_cvref_t<T>>::value || std::is_convertible_v<const T&, const at::Tensor&>;

// Taking structures apart ---------------------------------------------------------------------------------------------
/// Adds a structure to a Flat.
template <class T>
void flatten(Flat& flat, const T& value);
template <class T>
void flattenEach(Flat& flat, const T& values) {
  flat.form += '[';
  for (const auto& value : values) flatten(flat, value);
  flat.form += ']';
}
/// Adds a value as text that FormReader reads back.
ABELE_API void addConstant(Flat& flat, bool value);
ABELE_API void addConstant(Flat& flat, int64_t value);
ABELE_API void addConstant(Flat& flat, double value);
ABELE_API void addConstant(Flat& flat, std::string_view value);
template <class T>
struct Flattener {  // a tensor, or a type that converts to one
  static void add(Flat& flat, const T& value) { addTensor<std::conditional_t<true, at::Tensor, T>>(flat, value); }
  template <class Tensor>
  static void addTensor(Flat& flat, const Tensor& tensor) {
    flat.form += tensor.defined() ? 't' : '-';
    if (tensor.defined()) flat.tensors.push_back(tensor);
  }
};
template <Constant T>
struct Flattener<T> {
  static void add(Flat& flat, const T& value) {
    if constexpr (std::is_same_v<T, bool>)
      addConstant(flat, value);
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      addConstant(flat, static_cast<int64_t>(value));
    else if constexpr (std::is_floating_point_v<T>)
      addConstant(flat, static_cast<double>(value));
    else
      addConstant(flat, std::string_view(value));
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
template <HasFields T>
struct Flattener<T> {
  static void add(Flat& flat, T value) { flatten(flat, value.fields()); }
};
template <class Data, class Target>
struct Flattener<torch::data::Example<Data, Target>> {
  static void add(Flat& flat, const torch::data::Example<Data, Target>& values) {
    flatten(flat, std::tie(values.data, values.target));
  }
};
template <class T>
void flattenEntry(Flat& flat, const std::string& key, const T& value) {
  flat.form += std::to_string(key.size()) + ':' + key;
  flatten(flat, value);
}
template <class T, class C, class A>
struct Flattener<std::map<std::string, T, C, A>> {
  static void add(Flat& flat, const std::map<std::string, T, C, A>& values) {
    flat.form += '{';
    for (const auto& [key, value] : values) flattenEntry(flat, key, value);
    flat.form += '}';
  }
};
template <class T, class H, class E, class A>
struct Flattener<std::unordered_map<std::string, T, H, E, A>> {
  static void add(Flat& flat, const std::unordered_map<std::string, T, H, E, A>& values) {
    std::map<std::string, const T*> sorted;
    for (const auto& [key, value] : values) sorted.emplace(key, &value);
    flat.form += '{';
    for (const auto& [key, value] : sorted) flattenEntry(flat, key, *value);
    flat.form += '}';
  }
};
template <class T>
struct Flattener<torch::OrderedDict<std::string, T>> {
  static void add(Flat& flat, const torch::OrderedDict<std::string, T>& values) {
    flat.form += '{';
    for (const auto& item : values) flattenEntry(flat, item.key(), item.value());
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
/// Adds the results of forward. Each element of a vector or tuple is a result.
template <class T>
Flat flattenedResults(const T& value) {
  static_assert(Argument<T>, "forward returns tensors or structures of them (abele/structure.h)");
  Flat flat;
  flatten(flat, value);
  return flat;
}

// Putting them together again -----------------------------------------------------------------------------------------
/// Reads a form from left to right. A mismatch throws E0708, which names `what` and both forms.
class ABELE_API FormReader {
 public:
  FormReader(std::string form, std::string what) : form_(std::move(form)), what_(std::move(what)) {}
  bool atEnd() const { return at_ == form_.size(); }
  /// Steps over '-'. Returns true then, and at the end of the form.
  bool skipNothing() { return atEnd() || skip('-'); }
  bool skip(char c);
  void require(char c, const char* expected);
  /// Steps over a tensor and returns its number.
  size_t tensor();
  std::string key();
  bool flag();
  int64_t integer();
  double number();
  std::string text();
  /// Throws unless the whole form was read.
  void finish();

 private:
  [[noreturn]] void refuse(const std::string& expected) const;
  std::string constant(const char* expected);
  template <class T>
  T numberOf(const char* expected);
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
template <Constant T>
struct Builder<T> {
  template <class Tensors>
  static T make(FormReader& reader, const Tensors&) {
    if constexpr (std::is_same_v<T, bool>)
      return reader.flag();
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>)
      return static_cast<T>(reader.integer());
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(reader.number());
    else {
      static_assert(std::is_same_v<T, std::string>, "forward takes texts as std::string");
      return reader.text();
    }
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
template <class List>
struct ListBuilder {
  template <class Tensors>
  static List make(FormReader& reader, const Tensors& tensors) {
    using Element = typename List::value_type;
    List values;
    reader.require('[', "a list");
    if constexpr (requires { values.push_back(std::declval<Element>()); }) {
      while (!reader.skip(']')) values.push_back(Builder<Element>::make(reader, tensors));
    } else {
      for (Element& value : values) value = Builder<Element>::make(reader, tensors);
      reader.require(']', "no more elements");
    }
    return values;
  }
};
template <class T, class A>
struct Builder<std::vector<T, A>> : ListBuilder<std::vector<T, A>> {};
template <class T, size_t n>
struct Builder<std::array<T, n>> : ListBuilder<std::array<T, n>> {};
template <class Result, class Tensors, class... Each>
Result makeEach(FormReader& reader, const Tensors& tensors, std::tuple<Each...>*) {
  reader.require('[', "a tuple");
  Result result{Builder<Each>::make(reader, tensors)...};  // braces evaluate in order
  reader.require(']', "no more elements");
  return result;
}
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
template <class Data, class Target>
struct Builder<torch::data::Example<Data, Target>> {
  template <class Tensors>
  static torch::data::Example<Data, Target> make(FormReader& reader, const Tensors& tensors) {
    auto [data, target] = Builder<std::tuple<Data, Target>>::make(reader, tensors);
    return {std::move(data), std::move(target)};
  }
};
template <HasFields T>
struct Builder<T> {
  template <class Tensors>
  static T make(FormReader& reader, const Tensors& tensors) {
    T result;
    reader.require('[', "a struct");
    std::apply(
        [&](auto&... field) { ((field = Builder<std::remove_cvref_t<decltype(field)>>::make(reader, tensors)), ...); },
        result.fields());
    reader.require(']', "no more fields");
    return result;
  }
};
template <class Map, class T>
struct MapBuilder {
  template <class Tensors>
  static Map make(FormReader& reader, const Tensors& tensors) {
    Map values;
    reader.require('{', "a map");
    while (!reader.skip('}')) {
      std::string key = reader.key();
      T value = Builder<T>::make(reader, tensors);
      if constexpr (requires { values.emplace(key, value); })
        values.emplace(std::move(key), std::move(value));
      else
        values.insert(std::move(key), std::move(value));
    }
    return values;
  }
};
template <class T, class C, class A>
struct Builder<std::map<std::string, T, C, A>> : MapBuilder<std::map<std::string, T, C, A>, T> {};
template <class T, class H, class E, class A>
struct Builder<std::unordered_map<std::string, T, H, E, A>>
    : MapBuilder<std::unordered_map<std::string, T, H, E, A>, T> {};
template <class T>
struct Builder<torch::OrderedDict<std::string, T>> : MapBuilder<torch::OrderedDict<std::string, T>, T> {};
/// Puts the results of a call into the structure that forward returned.
template <class Result, class Tensors>
Result structured(const Tensors& tensors, const std::string& form) {
  FormReader reader(form, "the results of the model");
  Result result = Builder<Result>::make(reader, tensors);
  reader.finish();
  return result;
}

}  // namespace abele::detail
