// Forms (abele/structure.h) of a saved program and of its calls: structures of tensors as text, which C++ and Python
// both write.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace abele::host {

/// Is the text a form? What files hold may be anything.
bool isForm(std::string_view text);

/// A form for people: "a tensor, [a tensor, 3], {mask: a tensor}". Also of the beginning of one.
std::string formInWords(std::string_view form);

/// Where each tensor of a form stands, in order: positions and keys with dots between them, "0", "1.mask". Where the
/// form is one map or list alone, what is in it: "mask". Requires: it is a form.
std::vector<std::string> tensorNames(std::string_view form);

/// A form of a call: arguments that are left out at the end are nothing.
std::string withoutTrailingNothing(std::string form);

/// Which of the call's tensors the program takes as its first, second, ...; nothing where the forms differ in more than
/// the order of keys.
/// Requires: both are forms.
std::optional<std::vector<size_t>> tensorOrder(std::string_view compiled, std::string_view given);

}  // namespace abele::host
