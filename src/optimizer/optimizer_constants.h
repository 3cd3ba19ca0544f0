// The values of an optimizer that a compiled program fixes, as texts for messages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace abele::optimizer {

class OptimizerConstants {
 public:
  /// Which marks apply. kOfCompiled: those of the compiled optimizer. kOfBoth: also refuses a present optimizer that
  /// fixes a value which may vary here.
  enum class Marks { kOfBoth, kOfCompiled };
  explicit OptimizerConstants(Marks marks = Marks::kOfBoth) : marks_(marks) {}

  void note(std::string name, std::string text) { add(std::move(name), Kind::kFixed, std::move(text)); }
  /// Adds a value, and whether it is constant or may vary.
  void note(std::string name, std::string text, bool is_constant) {
    add(std::move(name), is_constant ? Kind::kConstant : Kind::kVariable, std::move(text));
  }
  /// Throws E0706 if the present optimizer has a different value for one of these, or other marks.
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

}  // namespace abele::optimizer
