// Numbers, strings and lists as little-endian bytes, for the .abx codec and for what compile/ and model/ store with it.
// A struct has one visit() for both directions: it takes a Writer or a Reader. Byte order and widths:
// docs/executable.md.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/arg.h"
#include "base/cat.h"
#include "base/type.h"

namespace abele::exe {

/// Throws E0501.
[[noreturn]] void reject(std::string what, std::string found = {}, std::string expected = {});

/// True for valid enumerators. Other enums overload this function in their own namespace.
inline bool isKnown(Arg::Kind k) { return k <= Arg::Kind::kNumber; }
inline bool isKnown(DType d) {
  return (d >= DType::kUInt8 && d <= DType::kBool) || d == DType::kBFloat16 || d == DType::kUndefined;
}

template <class Int>
Int littleEndian(Int value) {
  if constexpr (std::endian::native == std::endian::little) return value;
  Int out = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) out |= ((value >> (8 * i)) & 0xff) << (8 * (sizeof(Int) - 1 - i));
  return out;
}

class Writer {
 public:
  static constexpr bool kReads = false;
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  void operator()(T& value) {
    using Raw = std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, uint8_t, typename Int<T>::type>>;
    const Raw raw = littleEndian(static_cast<Raw>(value));
    out_.append(reinterpret_cast<const char*>(&raw), sizeof raw);
  }
  void operator()(double& value) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    (*this)(bits);
  }
  void operator()(std::string& text) {
    uint64_t n = text.size();
    (*this)(n);
    out_ += text;
  }
  uint64_t count(uint64_t n) {
    (*this)(n);
    return n;
  }
  std::string take() { return std::move(out_); }

 private:
  template <class T, bool = std::is_enum_v<T>>
  struct Int {
    using type = std::underlying_type_t<T>;
  };
  template <class T>
  struct Int<T, false> {
    using type = T;
  };
  std::string out_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
    requires(std::is_integral_v<T>)
  void operator()(T& value) {
    using Raw = std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;
    Raw raw;
    std::memcpy(&raw, take(sizeof raw).data(), sizeof raw);
    raw = littleEndian(raw);
    if (std::is_same_v<T, bool> && raw > 1) reject("a flag that is neither 0 nor 1");
    value = static_cast<T>(raw);
  }
  template <class T>
    requires(std::is_enum_v<T>)
  void operator()(T& value) {
    std::underlying_type_t<T> raw;
    (*this)(raw);
    if (!isKnown(static_cast<T>(raw)))
      reject("an enumerator that this version does not know", cat(static_cast<int>(raw)));
    value = static_cast<T>(raw);
  }
  void operator()(double& value) {
    uint64_t bits;
    (*this)(bits);
    value = std::bit_cast<double>(bits);
  }
  void operator()(std::string& text) {
    uint64_t n;
    (*this)(n);
    text = take(n);
  }
  // Every element takes at least one byte, so a damaged count allocates at most a few times the size of the file.
  uint64_t count(uint64_t) {
    uint64_t n;
    (*this)(n);
    if (n > bytes_.size() - at_) reject("a list longer than the file");
    return n;
  }
  bool atEnd() const { return at_ == bytes_.size(); }

 private:
  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_) reject("the file ends too early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

template <class A, class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>)
void visit(A& a, T& x) {
  a(x);
}

/// A list whose elements fn visits. It grows with the elements in the file, so a damaged count allocates no memory.
template <class A, class T, class Fn>
void visitEach(A& a, std::vector<T>& list, Fn&& fn) {
  const uint64_t n = a.count(list.size());
  if constexpr (A::kReads) {
    list.clear();
    for (uint64_t i = 0; i < n; ++i) fn(list.emplace_back());
  } else {
    for (T& item : list) fn(item);
  }
}

template <class A, class T>
void visit(A& a, std::vector<T>& list) {
  visitEach(a, list, [&](T& item) { visit(a, item); });
}

/// The fields of a struct, in the order of the file.
template <class A, class... Fields>
void visitFields(A& a, Fields&... fields) {
  (visit(a, fields), ...);
}

/// Visits keys in ascending order, so that equal maps have equal bytes; fn visits the values.
template <class A, class Value, class Fn>
void visitMap(A& a, std::map<std::string, Value>& map, Fn&& fn) {
  const uint64_t n = a.count(map.size());
  if constexpr (A::kReads) {
    map.clear();
    for (uint64_t i = 0; i < n; ++i) {
      std::string key;
      a(key);
      if (!map.empty() && key <= map.rbegin()->first) reject("keys that are not in ascending order", std::move(key));
      fn(map[std::move(key)]);
    }
  } else {
    for (auto& [key, value] : map) {
      std::string copy = key;
      a(copy);
      fn(value);
    }
  }
}

template <class A>
void visit(A& a, Type& x) {
  visitFields(a, x.dtype, x.sizes, x.strides);
}

/// Puts magic (8 bytes), version, size and checksum before the fields, and an id of their contents after them.
std::string seal(const char* magic, uint32_t version, std::string_view fields);
/// Returns the fields that were passed to seal(). Throws E0501 for other bytes; kind: "an Abele executable".
std::string_view unseal(const char* magic, uint32_t version, std::string_view bytes, const char* kind);

/// Seals all fields of a struct with a visit().
template <class T>
std::string sealed(const char* magic, uint32_t version, const T& value) {
  Writer fields;
  visit(fields, const_cast<T&>(value));  // visit() serves both directions, so it takes no const
  return seal(magic, version, fields.take());
}
/// The inverse of sealed(). Throws E0501.
template <class T>
T unsealed(const char* magic, uint32_t version, std::string_view bytes, const char* kind) {
  Reader reader(unseal(magic, version, bytes, kind));
  T value;
  visit(reader, value);
  if (!reader.atEnd()) reject("bytes after the end");
  return value;
}

}  // namespace abele::exe
