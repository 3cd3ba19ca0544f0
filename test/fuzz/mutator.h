// Changes fields of an executable, as an error of a disk or somebody's hand would: any number of any struct, any
// element of any list. What comes out is written with good checksums.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "exe/fields.h"

// In the namespace of visit(), which finds the overload for lists here.
namespace abele::exe {

/// Visits all fields and changes the one with the number `target`; counts them.
class FieldMutator {
 public:
  static constexpr bool kReads = false;
  FieldMutator(std::mt19937_64& random, int64_t target) : random_(random), target_(target) {}
  int64_t fields() const { return fields_; }

  template <class T>
    requires(std::is_integral_v<T>)
  void operator()(T& value) {
    if (isTarget()) value = static_cast<T>(std::is_same_v<T, bool> ? !value : other(static_cast<int64_t>(value)));
  }
  template <class T>
    requires(std::is_enum_v<T>)
  void operator()(T& value) {
    if (isTarget()) value = static_cast<T>(random_() % 18);
  }
  void operator()(double& value) {
    static constexpr double kOthers[] = {0, -1, 1e300, std::numeric_limits<double>::infinity(),
                                         std::numeric_limits<double>::quiet_NaN()};
    if (isTarget()) value = kOthers[random_() % 5];
  }
  void operator()(std::string& text) {
    if (!isTarget()) return;
    if (text.empty() || random_() % 2)
      text += "x";
    else
      text.resize(random_() % text.size());
  }
  template <class T>
  void list(std::vector<T>& items) {
    if (!isTarget()) return;
    if (items.empty()) {
      if (random_() % 2) items.emplace_back();
      return;
    }
    const size_t at = random_() % items.size(), with = random_() % items.size();
    switch (random_() % 4) {
      case 0: items.erase(items.begin() + static_cast<int64_t>(at)); break;
      case 1: items.push_back(items[at]); break;
      case 2: std::swap(items[at], items[with]); break;
      default: items[at] = items[with];
    }
  }

 private:
  bool isTarget() { return fields_++ == target_; }
  int64_t other(int64_t value) {
    static constexpr int64_t kOthers[] = {0,
                                          1,
                                          -1,
                                          2,
                                          63,
                                          64,
                                          1 << 20,
                                          int64_t{1} << 31,
                                          int64_t{1} << 32,
                                          int64_t{1} << 40,
                                          std::numeric_limits<int64_t>::max(),
                                          std::numeric_limits<int64_t>::min()};
    switch (random_() % 5) {
      case 0: return value + 1;
      case 1: return value - 1;
      case 2: return static_cast<int64_t>(random_() % 16);
      case 3: return value ^ (int64_t{1} << (random_() % 63));
      default: return kOthers[random_() % std::size(kOthers)];
    }
  }

  std::mt19937_64& random_;
  int64_t target_, fields_ = 0;
};

template <class T>
void visit(FieldMutator& a, std::vector<T>& list) {
  a.list(list);
  for (T& item : list) visit(a, item);
}

/// Changes one field or list.
inline void mutate(Executable& executable, std::mt19937_64& random) {
  FieldMutator count(random, -1);
  visit(count, executable);
  FieldMutator change(random, static_cast<int64_t>(random() % static_cast<uint64_t>(count.fields())));
  visit(change, executable);
}

}  // namespace abele::exe
