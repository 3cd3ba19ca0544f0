// One argument of an operator call, without LibTorch: it mirrors what a boxed ATen call can hold. Every layer uses it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele {

/// One positional argument. Ids name ir values in a Graph and slots in an Executable; -1 is an absent tensor. Enum-like
/// ATen arguments (dtype, layout, memory format) are kInt, as in a boxed call.
struct Arg {
  enum class Kind : uint8_t {
    kNone,
    kBool,            // i
    kInt,             // i
    kDouble,          // d
    kComplex,         // d + d2 * j
    kString,          // s
    kIntList,         // ints
    kDoubleList,      // doubles
    kBoolList,        // ints
    kStringList,      // strings
    kDevice,          // s, for example "cpu"
    kGenerator,       // the random stream of the stage; it has no value of its own
    kId,              // i: one tensor
    kIdList,          // ints: Tensor[]
    kOptionalIdList,  // ints: Tensor?[]
    kNumber,          // a Python number that ATen promotes as a 0-d "wrapped number" tensor: number_kind and i / d / d2
  };
  Kind kind = Kind::kNone;
  Kind number_kind = Kind::kNone;  // for kNumber: kBool, kInt, kDouble or kComplex
  int64_t i = 0;
  double d = 0;
  double d2 = 0;
  std::string s;
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  std::vector<std::string> strings;

  bool operator==(const Arg&) const = default;
  bool holdsIds() const { return kind == Kind::kId || kind == Kind::kIdList || kind == Kind::kOptionalIdList; }

  // clang-format off: a table
  static Arg none() { return {}; }
  static Arg boolean(bool v) { Arg a; a.kind = Kind::kBool; a.i = v; return a; }
  static Arg integer(int64_t v) { Arg a; a.kind = Kind::kInt; a.i = v; return a; }
  static Arg real(double v) { Arg a; a.kind = Kind::kDouble; a.d = v; return a; }
  static Arg id(int64_t v) { Arg a; a.kind = Kind::kId; a.i = v; return a; }
  static Arg intList(std::vector<int64_t> v) { Arg a; a.kind = Kind::kIntList; a.ints = std::move(v); return a; }
  static Arg idList(std::vector<int64_t> v) { Arg a; a.kind = Kind::kIdList; a.ints = std::move(v); return a; }
  static Arg string(std::string v) { Arg a; a.kind = Kind::kString; a.s = std::move(v); return a; }
  // clang-format on
};

/// Calls fn with the id of each tensor that an argument holds, except absent ones. If fn takes the id by reference, it
/// may change it. A: Arg or const Arg.
template <class A, class Fn>
void forEachId(A& arg, Fn&& fn) {
  if (arg.kind == Arg::Kind::kId && arg.i >= 0) fn(arg.i);
  if (arg.kind == Arg::Kind::kIdList || arg.kind == Arg::Kind::kOptionalIdList)
    for (auto& id : arg.ints)
      if (id >= 0) fn(id);
}

}  // namespace abele
