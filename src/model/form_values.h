// A form (model/forms.h) as a tree.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace abele::host {

struct FormValue {
  char kind = '-';                                       // 't', '-', '=', '[' or '{'
  std::string text;                                      // the text of a value other than a tensor
  std::vector<std::pair<std::string, FormValue>> items;  // the items of a list (without keys) or of a map
};

/// Requires: the text is a form.
std::vector<FormValue> formValues(std::string_view form);

}  // namespace abele::host
