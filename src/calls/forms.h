// Forms (abele/structure.h) of a saved program and of its calls: structures of tensors as text. C++ and Python both
// write them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace abele::calls {

/// Returns true if the text is a form. A file may hold any text.
bool isForm(std::string_view text);

/// A form in words: "a tensor, [a tensor, 3], {mask: a tensor}". Also accepts the beginning of a form.
std::string formInWords(std::string_view form);

/// The place of each tensor in a form, in order: positions and keys with dots between them, "0", "1.mask". If the form
/// is a single map or list, the place within it: "mask". Requires: the text is a form.
std::vector<std::string> tensorNames(std::string_view form);

/// Removes '-' at the end of a call's form: arguments that were left out.
std::string withoutTrailingNothing(std::string form);

/// The indices of the call's tensors in the order in which the program takes them. Returns nothing if the forms differ
/// in more than the order of keys.
/// Requires: both texts are forms.
std::optional<std::vector<size_t>> tensorOrder(std::string_view compiled, std::string_view given);

}  // namespace abele::calls
