#include "base/json_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <unordered_set>

#include "base/cat.h"

namespace abele {
namespace {

using Json = JsonText::Json;

constexpr int kDeepest = 32;

// Gives the text to the parser one character at a time and remembers how far the parser has read, because the parser's
// callback does not learn it.
class CountedCharacters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedCharacters(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountedCharacters& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountedCharacters operator++(int) {
    CountedCharacters before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountedCharacters& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

/// Turns "[json.exception...] parse error at line 1, column 2: why" into "why", and cuts off tokens of megabytes.
std::string reasonOf(const std::string& what) {
  constexpr size_t kMost = 200;
  const size_t column = what.find(", column ");
  const size_t begin = column == std::string::npos ? what.find("] ") : what.find(": ", column);
  const std::string reason = begin == std::string::npos ? what : what.substr(begin + 2);
  return reason.size() <= kMost ? reason : cat(reason.substr(0, kMost), "...");
}

/// Finds a value in the parsed text. Counts the values that precede it and builds its path. Returns true if `value` is
/// inside `whole`.
bool findIn(const Json& whole, const Json& value, size_t& before, std::string& path) {
  if (&whole == &value) return true;
  ++before;
  if (!whole.is_structured()) return false;
  for (const auto& [name, part] : whole.items()) {
    const size_t length = path.size();
    path += whole.is_array() ? cat("[", name, "]") : cat(path.empty() ? "" : ".", name);
    if (findIn(part, value, before, path)) return true;
    path.resize(length);
  }
  return false;
}

}  // namespace

JsonText::JsonText(const std::string& text) {
  using Event = Json::parse_event_t;
  const char *reached = text.data(), *counted = reached;
  int64_t line = 1;
  const auto here = [&] {  // the parser may have read one character past the token
    const char* const end = std::max(counted, reached == text.data() ? reached : reached - 1);
    line += std::count(counted, end, '\n');
    counted = end;
    return line;
  };
  std::array<std::unordered_set<std::string>, kDeepest + 1> names;  // names seen in each open object, by depth
  const auto look = [&](int depth, Event event, const Json& value) {
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth == kDeepest) throw JsonFault{here(), cat("more than ", kDeepest, " levels")};
    if (begins) names[static_cast<size_t>(depth) + 1].clear();
    if (event == Event::key && !names[static_cast<size_t>(depth)].insert(value.get<std::string>()).second)
      throw JsonFault{here(), cat(value.dump(), " twice in one object")};
    if (begins || event == Event::value) lines_.push_back(here());
    return true;
  };
  // The parser stops at a zero byte as at the end of the text, so the error is reported here.
  if (const size_t zero = text.find('\0'); zero != std::string::npos) {
    reached += zero + 1;
    throw JsonFault{here(), "a character of value 0"};
  }
  try {
    const CountedCharacters begin(text.data(), &reached), end(text.data() + text.size(), &reached);
    root_ = Json::parse(begin, end, look);
  } catch (const Json::exception& error) {
    throw JsonFault{here(), reasonOf(error.what())};
  }
}

std::string JsonText::placeOf(const Json& value) const {
  size_t before = 0;
  std::string path;
  if (!findIn(root_, value, before, path) || before >= lines_.size()) return "";
  return cat("line ", lines_[before], path.empty() ? "" : ", ", path);
}

Json boundedJson(const std::string& text) {
  try {
    return std::move(JsonText(text).root());
  } catch (const JsonFault&) {
    return Json::value_t::discarded;
  }
}

}  // namespace abele
