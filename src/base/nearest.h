// For messages about unknown names: the known name that was probably meant, and the list of known names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace abele {

/// The known name that differs least from `name`, ignoring case and underscores. Empty if every name differs in more
/// than a third of its letters. For a name with dots, the part after the last dot is compared too. A tie goes to the
/// closer exact spelling, then to the first name.
std::string nearestName(std::string_view name, const std::vector<std::string>& known);
/// "did you mean deviceIterations?", or `otherwise` if no known name is close.
std::string didYouMean(std::string_view name, const std::vector<std::string>& known, std::string otherwise = {});
/// "a, b or c".
std::string oneOf(const std::vector<std::string>& names);

}  // namespace abele
