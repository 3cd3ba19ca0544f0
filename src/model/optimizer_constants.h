// What a compiled program fixes of an optimizer, as texts for messages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace abele::host {

class OptimizerConstants {
 public:
  /// Whose marks count: with kOfBoth an optimizer of now that fixes what varies here is refused too.
  enum class Marks { kOfBoth, kOfCompiled };
  explicit OptimizerConstants(Marks marks = Marks::kOfBoth) : marks_(marks) {}

  void note(std::string name, std::string text) { add(std::move(name), Kind::kFixed, std::move(text)); }
  /// A value that may be one of those that change. What is constant at compile stays so, and what varies does.
  void note(std::string name, std::string text, bool is_constant) {
    add(std::move(name), is_constant ? Kind::kConstant : Kind::kVariable, std::move(text));
  }
  /// Throws E0706 where the optimizer of now has another value in the place of one of these, or other marks.
  void requireSame(const OptimizerConstants& now) const;

 private:
  enum class Kind { kFixed, kConstant, kVariable };
  struct Value {
    std::string name;
    Kind kind;
    std::string text;
  };
  void add(std::string name, Kind kind, std::string text) {
    values_.push_back({std::move(name), kind, std::move(text)});
  }
  const Value* find(const std::string& name) const;
  static std::string shown(const Value* value);
  void require(const Value* ours, const Value* theirs) const;

  Marks marks_;
  std::vector<Value> values_;
};

}  // namespace abele::host
