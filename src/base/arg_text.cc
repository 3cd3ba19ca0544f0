#include "base/arg_text.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/joined.h"

namespace abele::text {
namespace {

std::string idText(int64_t id, char prefix) { return id >= 0 ? cat(prefix, id) : cat(prefix, "none"); }

// The elements of a list show its kind; an empty list has the word `empty` instead.
template <class List, class Fn>
std::string listText(const List& list, const char* empty, Fn&& text) {
  return list.empty() ? std::string(empty) : cat("[", joined(list, text), "]");
}

std::string textOf(const Arg& a, char prefix) {
  using Kind = Arg::Kind;
  switch (a.kind) {
    case Kind::kNone: return "none";
    case Kind::kBool: return a.i ? "true" : "false";
    case Kind::kInt: return cat(a.i);
    case Kind::kDouble: return doubleText(a.d);
    case Kind::kComplex: return cat("complex(", doubleText(a.d), ", ", doubleText(a.d2), ")");
    case Kind::kString: return quoted(a.s);
    case Kind::kIntList: return listText(a.ints, "[]", [](int64_t i) { return cat(i); });
    case Kind::kDoubleList: return listText(a.doubles, "doubles[]", doubleText);
    case Kind::kBoolList: return listText(a.ints, "bools[]", [](int64_t i) { return i ? "true" : "false"; });
    case Kind::kStringList: return listText(a.strings, "strings[]", quoted);
    case Kind::kDevice: return cat("device(", quoted(a.s), ")");
    case Kind::kGenerator: return a.i == 0 ? "generator" : cat("generator(", a.i, ")");
    case Kind::kId: return idText(a.i, prefix);
    case Kind::kIdList: return listText(a.ints, "tensors[]", [&](int64_t i) { return idText(i, prefix); });
    case Kind::kOptionalIdList:
      return cat("optional[", joined(a.ints, [&](int64_t i) { return i < 0 ? std::string("none") : cat(prefix, i); }),
                 "]");
    case Kind::kNumber: {
      Arg plain = a;
      plain.kind = a.number_kind;
      plain.number_kind = Kind::kNone;
      return cat("number(", textOf(plain, prefix), ")");
    }
  }
  return "none";
}

class ArgParser {
 public:
  ArgParser(char prefix, const std::function<void(int64_t)>& named) : prefix_(prefix), named_(named) {}

  Arg parseArg(Cursor& c) {
    if (c.peek(prefix_)) return Arg::id(parseId(c));
    if (c.peek('"')) return Arg::string(c.string());
    if (c.accept('[')) return parseListArg(c);
    std::string_view word = c.peekWord();
    if (c.acceptWord("none")) return Arg::none();
    if (c.acceptWord("true")) return Arg::boolean(true);
    if (c.acceptWord("false")) return Arg::boolean(false);
    using enum Arg::Kind;
    constexpr std::pair<std::string_view, Arg::Kind> kMarked[] = {
        {"generator", kGenerator}, {"device", kDevice},           {"complex", kComplex},
        {"number", kNumber},       {"optional", kOptionalIdList}, {"tensors", kIdList},
        {"doubles", kDoubleList},  {"bools", kBoolList},          {"strings", kStringList}};
    for (const auto& [name, kind] : kMarked)
      if (word == name) return parseMarked(c, kind);
    return parseNumberArg(c);
  }

  Arg parseNumberArg(Cursor& c) {
    int64_t whole = 0;
    bool is_integer = false;
    double number = c.number(&whole, &is_integer);
    return is_integer ? Arg::integer(whole) : Arg::real(number);
  }

  // Reads an argument whose kind is named by its first word.
  Arg parseMarked(Cursor& c, Arg::Kind kind) {
    c.word("an argument");
    Arg a;
    a.kind = kind;
    switch (kind) {
      case Arg::Kind::kDevice:
        c.expect('(');
        a.s = c.string();
        c.expect(')');
        break;
      case Arg::Kind::kComplex:
        c.expect('(');
        a.d = c.real();
        c.expect(',');
        a.d2 = c.real();
        c.expect(')');
        break;
      case Arg::Kind::kNumber:
        c.expect('(');
        if (c.peekWord() == "number" || c.peek('[')) fail("number(...) cannot be nested");
        a = parseArg(c);
        if (a.kind != Arg::Kind::kBool && a.kind != Arg::Kind::kInt && a.kind != Arg::Kind::kDouble &&
            a.kind != Arg::Kind::kComplex)
          fail("number(...) takes a bool, an integer, a double or complex(...)");
        a.number_kind = std::exchange(a.kind, Arg::Kind::kNumber);
        c.expect(')');
        break;
      case Arg::Kind::kOptionalIdList:
        c.expect('[');
        if (c.accept(']')) break;
        do a.ints.push_back(c.acceptWord("none") ? -1 : parseId(c));
        while (c.accept(','));
        c.expect(']');
        break;
      case Arg::Kind::kGenerator:
        if (!c.accept('(')) break;
        a.i = c.index(kMaxId);
        c.expect(')');
        break;
      default:  // a word for an empty list of some kind
        c.expect('[');
        c.expect(']');
    }
    return a;
  }

  // Reads a list after its opening bracket. The first element gives the kind; [] is a list of integers.
  Arg parseListArg(Cursor& c) {
    Arg list = Arg::intList({});
    if (c.accept(']')) return list;
    std::vector<Arg> elements;
    bool has_double = false;
    do {
      if (c.peek('[')) fail("a list cannot hold a list");
      elements.push_back(parseArg(c));
      has_double = has_double || elements.back().kind == Arg::Kind::kDouble;
    } while (c.accept(','));
    c.expect(']');
    Arg::Kind kind = has_double ? Arg::Kind::kDouble : elements[0].kind;
    for (const Arg& element : elements) {
      bool promoted = has_double && element.kind == Arg::Kind::kInt;
      if (element.kind != kind && !promoted) fail("elements of different kinds in one list");
      switch (kind) {
        case Arg::Kind::kInt: list.ints.push_back(element.i); break;
        case Arg::Kind::kBool: list.kind = Arg::Kind::kBoolList, list.ints.push_back(element.i); break;
        case Arg::Kind::kId: list.kind = Arg::Kind::kIdList, list.ints.push_back(element.i); break;
        case Arg::Kind::kString: list.kind = Arg::Kind::kStringList, list.strings.push_back(element.s); break;
        case Arg::Kind::kDouble:
          list.kind = Arg::Kind::kDoubleList;
          list.doubles.push_back(promoted ? static_cast<double>(element.i) : element.d);
          break;
        default: fail("a list cannot hold this kind of element");
      }
    }
    return list;
  }

 private:
  int64_t parseId(Cursor& c) {
    c.expect(prefix_);
    if (c.acceptWord("none")) return -1;
    const int64_t id = c.index(kMaxId);
    named_(id);
    return id;
  }

  char prefix_;
  const std::function<void(int64_t)>& named_;
};

// Keeps later arithmetic on sizes and byte offsets from overflowing.
void requireAddressable(const Type& type, std::string_view name) {
  constexpr double kLimit = 1e15;
  double numel = 1, extent = 1;
  for (size_t i = 0; i < type.sizes.size(); ++i) {
    double size = static_cast<double>(std::max<int64_t>(type.sizes[i], 1)),
           stride = static_cast<double>(type.strides[i]);
    numel *= size;
    extent += (size - 1) * std::abs(stride);
  }
  if (numel > kLimit || extent > kLimit) fail("type ", name, " is larger than any memory");
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

std::string doubleText(double number) {
  std::string out = cat(number);
  if (out.find_first_not_of("-0123456789") == std::string::npos) out += ".0";
  return out;
}

std::string argText(const Arg& arg, char prefix) { return textOf(arg, prefix); }

Arg parseArg(Cursor& c, char prefix, const std::function<void(int64_t)>& named) {
  return ArgParser(prefix, named).parseArg(c);
}

Type parseType(Cursor& c) {
  std::string_view name = c.word("a type");
  bool known = false;
  Type type;
  type.dtype = parseDType(name, &known);
  if (!known) fail("unknown type ", name);
  if (!type.defined()) return type;
  c.expect('[');
  type.sizes = parseIntegers(c, ']');
  type.strides.assign(type.sizes.size(), 0);
  for (int64_t size : type.sizes)
    if (size < 0) fail("negative size in type ", name);
  requireAddressable(type, name);
  type = contiguousType(type.dtype, std::move(type.sizes));
  if (!c.acceptAdjacent('{')) return type;  // after a blank it opens attributes
  type.strides = parseIntegers(c, '}');
  if (type.strides.size() != type.sizes.size())
    fail("type ", name, " has ", type.sizes.size(), " sizes but ", type.strides.size(), " strides");
  requireAddressable(type, name);
  return type;
}

std::vector<int64_t> parseIntegers(Cursor& c, char close) {
  std::vector<int64_t> numbers;
  if (c.accept(close)) return numbers;
  do numbers.push_back(c.integer());
  while (c.accept(','));
  c.expect(close);
  return numbers;
}

void refuseMistakes(Mistakes mistakes, ErrorCode code, std::string_view of_what, std::string expected) {
  if (mistakes.empty()) return;
  std::stable_sort(mistakes.begin(), mistakes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string found =
      joined(mistakes, [](const auto& each) { return cat("line ", each.first, ": ", each.second); }, "\n");
  throwUser(code,
            {.what = cat(mistakes.size(), mistakes.size() == 1 ? " mistake" : " mistakes", " in the text of ", of_what),
             .found = std::move(found),
             .expected = std::move(expected)});
}

}  // namespace abele::text
