// Arguments, types, strings and numbers in the text forms (docs/ir.md). All printers and parsers use it. The prefix of
// an id shows what it names: % a value, $ a slot.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "base/arg.h"
#include "base/cursor.h"
#include "base/type.h"

namespace abele::text {

/// Ids index tables, so an absurd id must not make the tables huge.
inline constexpr int64_t kMaxId = 10'000'000;

/// The text in quotes, with escapes for quotes, backslashes and control characters. Cursor::string reads it.
std::string quoted(std::string_view text);
/// The shortest text that reads back as the same number, marked as a double.
std::string doubleText(double number);
std::string argText(const Arg& arg, char prefix);

/// A named number in a line, and its default, for lines that do not write it.
template <class Row, class Int = int64_t>
struct Number {
  const char* name;
  Int Row::*field;
  Int unsaid;
};
inline constexpr int64_t kSaidAlways = std::numeric_limits<int64_t>::min();
/// " name=1 other=2"
template <class Row, class Int, size_t kCount>
std::string numbersText(const Row& row, const Number<Row, Int> (&numbers)[kCount]) {
  std::string out;
  for (const auto& [name, field, unsaid] : numbers)
    if (row.*field != unsaid) out += cat(" ", name, "=", row.*field);
  return out;
}
/// Reads "name=" if it is next in the text. Returns the number with this name, or null for other text.
template <class Row, class Int, size_t kCount>
const Number<Row, Int>* acceptNumber(Cursor& c, const Number<Row, Int> (&numbers)[kCount]) {
  for (const Number<Row, Int>& number : numbers)
    if (c.acceptKey(number.name)) return &number;
  return nullptr;
}

/// The three functions below throw Mistake. Calls `named` with each id that it reads.
Arg parseArg(Cursor& c, char prefix, const std::function<void(int64_t)>& named);
/// Reads f32[4,8], f32[4,8]{1,4} or none. Its sizes and byte offsets do not overflow.
Type parseType(Cursor& c);
/// Reads numbers up to the closing bracket; the opening one has been read already.
std::vector<int64_t> parseIntegers(Cursor& c, char close);

}  // namespace abele::text
