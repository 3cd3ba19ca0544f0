// Values as text, by the rules of Python's str(), repr(), f-strings, format() and %.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "options/things.h"

namespace abele::host {
namespace {

using Kind = Container::Kind;

[[noreturn]] void refuseFormat(const std::string& format, const std::string& why) {
  refuse(ErrorCode::E0702, cat("format \"", format, "\": ", why), "ValueError");
}

std::string realText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const auto shortest = [&](std::chars_format format) {
    char buffer[512];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr);
  };
  std::string text = shortest(std::chars_format::scientific);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  text = shortest(std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string quotedText(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  const bool is_double = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = is_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      out += {'\\', c};
    else if (c == '\n' || c == '\t' || c == '\r')
      out += {'\\', c == '\n' ? 'n' : c == '\t' ? 't' : 'r'};
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    else
      out += c;
  }
  return out + quote;
}

std::string containerText(const Container& container) {
  if (isLazy(container)) refuse(ErrorCode::E0702, "the text of a range or an iterator", "TypeError");
  const bool is_set = container.kind == Kind::kSet;
  if (is_set && container.items.size() > 1)
    refuse(ErrorCode::E0702, "the text of a set, which has no order", "TypeError");
  if (is_set && container.items.empty()) return "set()";
  std::string all;
  for (size_t i = 0; i < container.items.size(); ++i) {
    all += cat(i == 0 ? "" : ", ", representationOf(container.items[i]));
    if (container.kind == Kind::kMap) all += cat(": ", representationOf(container.mapped[i]));
  }
  if (container.kind == Kind::kList) return cat("[", all, "]");
  if (container.kind == Kind::kTuple) return cat("(", all, container.items.size() == 1 ? ",)" : ")");
  return cat("{", all, "}");
}

// Format specifications ----------------------------------------------------------------------------------------------

struct Format {
  std::string fill;  // empty: a space, or zeros behind the sign
  char align = 0;
  char sign = '-';
  bool alternate = false, zeros = false;
  size_t width = 0;
  char grouping = 0;
  int precision = -1;
  char type = 0;
};

Format parseFormat(const std::string& text) {
  const std::vector<std::string> points = codePointsOf(text);
  Format format;
  size_t i = 0;
  const auto at = [&](size_t place) {
    return place < points.size() && points[place].size() == 1 ? points[place][0] : 0;
  };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto number = [&] {
    size_t value = 0;
    for (; at(i) >= '0' && at(i) <= '9'; ++i) {
      value = value * 10 + static_cast<size_t>(at(i) - '0');
      if (value > 1000) refuseFormat(text, "more than 1000 characters");
    }
    return value;
  };
  if (is_align(at(1))) {
    format.fill = points[0];
    format.align = at(1);
    i = 2;
  } else if (is_align(at(0))) {
    format.align = at(i++);
  }
  if (at(i) == '+' || at(i) == '-' || at(i) == ' ') format.sign = at(i++);
  if (at(i) == '#') format.alternate = true, ++i;
  if (at(i) == '0') format.zeros = true, ++i;
  format.width = number();
  if (at(i) == ',' || at(i) == '_') format.grouping = at(i++);
  if (at(i) == '.') {
    ++i;
    if (at(i) < '0' || at(i) > '9') refuseFormat(text, "a precision is missing");
    format.precision = static_cast<int>(number());
  }
  if (i < points.size()) format.type = at(i++);
  if (i < points.size()) refuseFormat(text, "it has another form");
  return format;
}

std::string padded(const std::string& sign, const std::string& body, const Format& format, char align) {
  const size_t length = sign.size() + codePointsOf(body).size();
  const size_t missing = format.width > length ? format.width - length : 0;
  const char used = format.align != 0 ? format.align : format.zeros ? '=' : align;
  const std::string fill = !format.fill.empty() ? format.fill : format.zeros ? "0" : " ";
  const auto times = [&](size_t count) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += fill;
    return all;
  };
  if (used == '=') return cat(sign, times(missing), body);
  if (used == '<') return cat(sign, body, times(missing));
  if (used == '>') return cat(times(missing), sign, body);
  return cat(times(missing / 2), sign, body, times(missing - missing / 2));
}

std::string signOf(bool is_negative, const Format& format) {
  return is_negative ? "-" : format.sign == '-' ? "" : std::string(1, format.sign);
}

void group(std::string& digits, const Format& format, const std::string& text) {
  if (format.grouping == 0) return;
  if (format.zeros) refuseFormat(text, "groups of digits with leading zeros");
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, 1, format.grouping);
}

std::string wholeFormatted(const Thing& thing, const Format& format, const std::string& text) {
  if (format.precision >= 0) refuseFormat(text, "a precision of a whole number");
  const bool is_large = scalarOf<uint64_t>(thing) != nullptr;
  const int64_t value = is_large ? 0 : *wholeNumberOf(thing);
  const uint64_t size = is_large    ? *scalarOf<uint64_t>(thing)
                        : value < 0 ? -static_cast<uint64_t>(value)
                                    : static_cast<uint64_t>(value);
  const char type = format.type == 0 ? 'd' : format.type;
  const int base = type == 'd' ? 10 : type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 0;
  if (base == 0) refuseFormat(text, "it has another type");
  if (base != 10 && format.grouping != 0) refuseFormat(text, "groups of other digits than decimal ones");
  char buffer[80];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, size, base).ptr);
  if (type == 'X')
    std::ranges::transform(digits, digits.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  group(digits, format, text);
  std::string sign = signOf(value < 0, format);
  if (format.alternate && base != 10) sign += {'0', type};
  return padded(sign, digits, format, '>');
}

std::string realFormatted(double value, const Format& format, const std::string& text) {
  if (format.alternate) refuseFormat(text, "# of a number that is not whole");
  const bool is_share = format.type == '%';
  if (format.type == 0 && format.precision >= 0) refuseFormat(text, "a precision without a type such as f");
  const double size = std::abs(is_share ? value * 100 : value);
  std::string digits;
  if (format.type == 0 || !std::isfinite(size)) {
    digits = realText(size);
  } else {
    const std::string kinds = "eEfFgG%";
    if (kinds.find(format.type) == std::string::npos) refuseFormat(text, "it has another type");
    const char control[] = {'%', '.', '*', is_share ? 'f' : format.type, 0};
    char buffer[1500];
    std::snprintf(buffer, sizeof buffer, control, format.precision < 0 ? 6 : format.precision, size);
    digits = buffer;
  }
  group(digits, format, text);
  if (is_share) digits += '%';
  return padded(signOf(std::signbit(value) && !std::isnan(value), format), digits, format, '>');
}

std::string textFormatted(const std::string& value, const Format& format, const std::string& text) {
  const bool fits = (format.type == 0 || format.type == 's') && format.align != '=' && format.sign == '-' &&
                    !format.alternate && format.grouping == 0 && !format.zeros;
  if (!fits) refuseFormat(text, "it is none of text");
  std::string taken;
  const std::vector<std::string> points = codePointsOf(value);
  const size_t most = format.precision < 0 ? points.size() : static_cast<size_t>(format.precision);
  for (size_t i = 0; i < std::min(most, points.size()); ++i) taken += points[i];
  return padded("", taken, format, '<');
}

// % ------------------------------------------------------------------------------------------------------------------

struct PercentArguments {
  Things items;
  const Container* map = nullptr;
  size_t next = 0;

  const Thing& take(const std::string& text) {
    if (next == items.size()) refuse(ErrorCode::E0702, cat("too few values for ", quoted(text)), "TypeError");
    return items[next++];
  }
};

/// Behind a "%", up to its type.
std::string percentField(const std::string& text, size_t& i, PercentArguments& arguments) {
  std::optional<Thing> named;
  if (text[i] == '(') {
    const size_t end = text.find(')', i);
    if (end == std::string::npos || arguments.map == nullptr)
      refuse(ErrorCode::E0702, cat("a name in ", quoted(text), " without a map"), "TypeError");
    const std::optional<size_t> place = placeIn(*arguments.map, OptionValue(text.substr(i + 1, end - i - 1)));
    if (!place) refuse(ErrorCode::E0702, cat("a name in ", quoted(text), " that the map has not"), "KeyError");
    named = arguments.map->mapped[*place];
    i = end + 1;
  }
  const size_t begin = i;
  i = std::min(text.find_first_not_of("-+ 0123456789.", i), text.size());
  std::string flags = text.substr(begin, i - begin);
  if (i == text.size()) refuseFormat(text, "an incomplete %");
  const char type = text[i++];
  const Thing value = named ? *named : arguments.take(text);
  const bool is_left = flags.starts_with('-');
  if (is_left) flags.erase(0, 1);
  if (type == 's' || type == 'r') {
    const std::string word = type == 's' ? plainTextOf(value) : representationOf(value);
    return formatted(OptionValue(word), cat(is_left ? "<" : ">", flags));
  }
  const bool is_whole = type == 'd' || type == 'i' || type == 'x' || type == 'X' || type == 'o';
  if (!is_whole && std::string("eEfFgG").find(type) == std::string::npos) refuseFormat(text, "it has another type");
  if (!isNumber(value) || (is_whole && scalarOf<double>(value)))
    refuse(ErrorCode::E0702, cat("%", std::string(1, type), " of ", kindOf(value)), "TypeError");
  return formatted(value, cat(is_left ? "<" : "", flags, type == 'i' ? 'd' : type));
}

}  // namespace

std::string representationOf(const Thing& thing) {
  if (const Container* container = containerOf(thing)) return containerText(*container);
  if (scalarOf<std::monostate>(thing)) return "None";
  if (const bool* truth = scalarOf<bool>(thing)) return *truth ? "True" : "False";
  if (const double* real = scalarOf<double>(thing)) return realText(*real);
  if (isNumber(thing)) return std::get<OptionValue>(thing).text();
  if (const auto* text = scalarOf<std::string>(thing)) return quotedText(*text);
  refuse(ErrorCode::E0702, cat("the text of ", kindOf(thing)), "TypeError");
}

std::string plainTextOf(const Thing& thing) {
  const auto* text = scalarOf<std::string>(thing);
  return text ? *text : representationOf(thing);
}

std::string formatted(const Thing& thing, const std::string& text) {
  if (text.empty()) return plainTextOf(thing);
  const Format format = parseFormat(text);
  if (const auto* value = scalarOf<std::string>(thing)) return textFormatted(*value, format, text);
  if (!isNumber(thing)) refuse(ErrorCode::E0702, cat("format \"", text, "\" of ", kindOf(thing)), "TypeError");
  const bool is_real =
      scalarOf<double>(thing) || (format.type != 0 && std::string("eEfFgG%").find(format.type) != std::string::npos);
  return is_real ? realFormatted(realOf(std::get<OptionValue>(thing)), format, text)
                 : wholeFormatted(thing, format, text);
}

std::string percentFormatted(const std::string& text, const Thing& given) {
  PercentArguments arguments;
  const Container* container = containerOf(given);
  const bool is_tuple = container && container->kind == Kind::kTuple;
  if (container && container->kind == Kind::kMap) arguments.map = container;
  arguments.items = is_tuple ? container->items : Things{given};
  std::string out;
  bool has_names = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i++];
    if (c != '%') {
      out += c;
    } else if (i < text.size() && text[i] == '%') {
      out += text[i++];
    } else {
      has_names = has_names || (i < text.size() && text[i] == '(');
      if (i == text.size()) refuseFormat(text, "an incomplete %");
      out += percentField(text, i, arguments);
    }
  }
  if (arguments.next < arguments.items.size() && !has_names && !arguments.map)
    refuse(ErrorCode::E0702, cat("too many values for ", quoted(text)), "TypeError");
  return out;
}

std::string braceFormatted(const std::string& text, const Things& arguments, const NamedThings& named) {
  std::string out;
  size_t next = 0;
  bool has_numbers = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i++];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (i < text.size() && text[i] == c) {
      out += text[i++];
      continue;
    }
    const size_t end = text.find('}', i);
    if (c == '}' || end == std::string::npos) refuseFormat(text, "a single brace");
    std::string name = text.substr(i, end - i), format;
    i = end + 1;
    if (const size_t colon = name.find(':'); colon != std::string::npos) {
      format = name.substr(colon + 1);
      name.erase(colon);
    }
    const bool represents = name.ends_with("!r");
    if (represents || name.ends_with("!s")) name.erase(name.size() - 2);
    if (name.find_first_of(".[!{") != std::string::npos || format.find('{') != std::string::npos)
      refuse(ErrorCode::E0701, cat("a configuration file cannot look into {", name, "}"), "AttributeError");
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    has_numbers = has_numbers || (is_number && !name.empty());
    if (has_numbers && next + (name.empty() ? 1 : 0) > 0) refuseFormat(text, "fields with and without numbers");
    const auto by_name = std::ranges::find_if(named, [&](const auto& each) { return each.first == name; });
    const size_t place = !is_number ? 0 : name.empty() ? next++ : name.size() > 4 ? arguments.size() : std::stoul(name);
    if (is_number ? place >= arguments.size() : by_name == named.end())
      refuse(ErrorCode::E0702, cat("{", name, "} has no value"), is_number ? "IndexError" : "KeyError");
    const Thing& value = is_number ? arguments[place] : by_name->second;
    out += formatted(represents ? Thing(OptionValue(representationOf(value))) : value, format);
  }
  return out;
}

std::vector<std::string> codePointsOf(const std::string& text) {
  std::vector<std::string> points;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80 && !points.empty();
    if (continues)
      points.back() += c;
    else
      points.emplace_back(1, c);
  }
  return points;
}

}  // namespace abele::host
