// For printers and parsers of every level: arguments, types, strings and numbers as the text forms write them
// (docs/ir.md). Ids have the prefix of what they name: % a value, $ a slot.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/arg.h"
#include "base/cursor.h"
#include "base/type.h"

namespace abele::text {

/// Ids index tables, so that an absurd one must not allocate them.
inline constexpr int64_t kMaxId = 10'000'000;

/// In quotes, with escapes for quotes, backslashes and control characters. Cursor::string reads it.
std::string quoted(std::string_view text);
/// The shortest text that reads back as the same number, marked as a double.
std::string doubleText(double number);
std::string argText(const Arg& arg, char prefix);

/// The three below throw Mistake. named: called with each id that is read.
Arg parseArg(Cursor& c, char prefix, const std::function<void(int64_t)>& named);
/// f32[4,8], f32[4,8]{1,4} or none; sizes and places in bytes do not overflow.
Type parseType(Cursor& c);
/// Numbers up to the closing bracket; the opening one has been read.
std::vector<int64_t> parseIntegers(Cursor& c, char close);

}  // namespace abele::text
