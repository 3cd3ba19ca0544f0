// AtEnd restores what a scope changes. Unlike c10::make_scope_exit it has a type that functions can declare and return.
#pragma once

#include <functional>
#include <utility>

namespace abele {

/// Calls a function at the end of its scope. The function does not throw.
class [[nodiscard]] AtEnd {
 public:
  explicit AtEnd(std::function<void()> act) : act_(std::move(act)) {}
  ~AtEnd() { act_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  std::function<void()> act_;
};

}  // namespace abele
