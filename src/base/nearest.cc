#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace abele {
namespace {

std::string plain(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

/// The number of edits between two words: a letter added, dropped, replaced or swapped with its neighbour.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before = std::exchange(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::string nearestName(std::string_view name, const std::vector<std::string>& known) {
  const std::string letters = plain(name), written(name);
  std::string nearest;
  // Ties are decided by the exact spelling: a setter and its value may have the same letters.
  std::pair<size_t, size_t> least{letters.size() / 3 + 1, 0};
  for (const std::string& each : known) {
    const std::string last = each.substr(each.rfind('.') + 1);
    const std::pair differing{std::min(distance(letters, plain(each)), distance(letters, plain(last))),
                              std::min(distance(written, each), distance(written, last))};
    if (differing >= least) continue;
    least = differing;
    nearest = each;
  }
  return nearest;
}

std::string didYouMean(std::string_view name, const std::vector<std::string>& known, std::string otherwise) {
  const std::string nearest = nearestName(name, known);
  return nearest.empty() ? std::move(otherwise) : "did you mean " + nearest + "?";
}

std::string oneOf(const std::vector<std::string>& names) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) all += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return all;
}

}  // namespace abele
