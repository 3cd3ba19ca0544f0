// For messages about unknown names: which known one was meant, and which there are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace abele {

/// The known name that differs least from `name`, upper and lower case and underscores apart; empty where all differ in
/// more than a third of its letters. Of names with dots the part behind the last one counts too. Of equals the one
/// that is written more alike, then the first.
std::string nearestName(std::string_view name, const std::vector<std::string>& known);
/// "did you mean deviceIterations?", or `otherwise` where nothing is near.
std::string didYouMean(std::string_view name, const std::vector<std::string>& known, std::string otherwise = {});
/// "a, b or c": what there is.
std::string oneOf(const std::vector<std::string>& names);

}  // namespace abele
