// What a compiled program fixes of an optimizer, as texts for messages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace abele::host {

class OptimizerConstants {
 public:
  void note(std::string name, std::string text) { values_.emplace_back(std::move(name), std::move(text)); }
  /// A value that may be one of those that change. What is constant at compile stays so, and what varies does.
  void note(std::string name, const std::string& text, bool is_constant);
  /// Throws E0706 where the optimizer of now has another value in the place of one of these, or fixes what varies here.
  void requireSame(const OptimizerConstants& now) const;

 private:
  const std::string& textOf(const std::string& name) const;

  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace abele::host
