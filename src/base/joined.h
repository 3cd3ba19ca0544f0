// joined(items, text) lists things in a message: "a, b, c".
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/cat.h"

namespace abele {

/// text: what to show of an item; anything that cat() takes.
template <class Items, class Text = std::identity>
std::string joined(const Items& items, const Text& text = {}, std::string_view between = ", ") {
  std::string all;
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) all += between;
    is_first = false;
    all += cat(std::invoke(text, item));
  }
  return all;
}

}  // namespace abele
