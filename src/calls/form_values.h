// A form (calls/forms.h) as a tree.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace abele::calls {

struct FormItem;

struct FormValue {
  char kind = '-';              // 't', '-', '=', '[' or '{'
  std::string text;             // for '=': the text of the value
  size_t tensor = 0;            // the number of tensors before this one
  std::vector<FormItem> items;  // the items of a list (without keys) or of a map
};

/// Not a std::pair, because clang needs a complete FormValue to look up a pair's constructors.
struct FormItem {
  std::string key;
  FormValue value;
};

/// Requires: the text is a form.
std::vector<FormValue> formValues(std::string_view form);

}  // namespace abele::calls
