// Reads the text form line by line: a line with a mistake is reported and skipped, so that all mistakes are told at
// once.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/cat.h"
#include "base/error.h"
#include "ir/cursor_impl.h"
#include "ir/text.h"
#include "ir/text_impl.h"

namespace abele::ir {
namespace {

// Ids index tables, so that an absurd one must not allocate them.
constexpr int64_t kMaxId = 10'000'000;
constexpr int64_t kMaxOffset = 1'000'000'000'000'000;

// Everything before a # that is not inside a string.
std::string_view withoutComment(std::string_view line) {
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\')
      ++i;
    else if (line[i] == '"')
      in_string = !in_string;
    else if (line[i] == '#' && !in_string)
      return line.substr(0, i);
  }
  return line;
}

template <size_t kSize>
int findName(const std::array<std::string_view, kSize>& names, std::string_view name, const char* what) {
  auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) fail("unknown ", what, " ", name);
  return static_cast<int>(it - names.begin());
}

class Parser {
 public:
  Graph run(std::string_view text) {
    while (!text.empty()) {
      size_t end = text.find('\n');
      std::string_view line = withoutComment(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      ++line_;
      try {
        parseLine(Cursor(line));
      } catch (const Mistake& mistake) {
        report(line_, mistake.text);
      }
    }
    finish();
    return std::move(graph_);
  }

 private:
  void report(int line, std::string_view text) { mistakes_.emplace_back(line, text); }

  void finish() {
    if (!opened_)
      report(std::max(line_, 1), "expected 'graph @name {'");
    else if (!closed_)
      report(line_, "expected '}' after the last line");
    for (auto [id, line] : references_)
      if (id >= static_cast<int64_t>(defined_.size()) || !defined_[id]) report(line, cat("%", id, " is not defined"));
    size_t limit = std::max(defined_.size(), static_cast<size_t>(num_values_));
    for (size_t id = graph_.values.size(); id < limit; ++id) graph_.addValue({}, kNone);
    if (mistakes_.empty()) {
      // The default of the view flag needs the bases of all results, also of those on later lines.
      for (auto [position, set] : view_flags_)
        if (!set) graph_.nodes[position].is_view = makesOnlyViews(graph_, graph_.nodes[position]);
      graph_.node_id_limit = node_id_limit_;
      return;
    }
    std::stable_sort(mistakes_.begin(), mistakes_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string found;
    for (const auto& [line, what] : mistakes_) found += cat(found.empty() ? "" : "\n", "line ", line, ": ", what);
    throwUser(ErrorCode::E0202, {.what = cat(mistakes_.size(), mistakes_.size() == 1 ? " mistake" : " mistakes",
                                             " in the text of a graph"),
                                 .found = std::move(found),
                                 .expected = "the text form of docs/ir.md"});
  }

  void parseLine(Cursor c) {
    if (c.atEnd()) return;
    if (closed_) fail("text after the closing brace ", c.here());
    if (!opened_) return parseHeader(c);
    if (c.accept('}')) {
      closed_ = true;
      return c.expectEnd();
    }
    std::string_view first = c.peekWord();
    if (first == "block")
      parseBlock(c);
    else if (first == "stage")
      parseStage(c);
    else if (first == "external")
      parseExternal(c);
    else if (first == "input")
      parseInput(c);
    else if (first == "output")
      parseOutput(c);
    else
      parseNode(c);
  }

  // graph @main {training, draws=12} {
  void parseHeader(Cursor& c) {
    if (!c.acceptWord("graph")) fail("expected 'graph' ", c.here());
    opened_ = true;
    c.expect('@');
    graph_.name = c.peek('"') ? c.string() : std::string(c.word("a name"));
    c.expect('{');
    if (c.atEnd()) return;
    parseAttributes(c, [&](std::string_view key) {
      if (key == "training") return graph_.training = true;
      c.expect('=');
      if (key == "draws")
        graph_.random_draws = c.integer();
      else if (key == "values")
        num_values_ = c.index(kMaxId);
      else
        return false;
      return true;
    });
    c.expect('{');
    c.expectEnd();
  }

  // Calls take(key) for each, after the opening brace was read; take reads "=value" and tells whether it knows the key.
  template <class Take>
  void parseAttributes(Cursor& c, Take&& take) {
    do {
      std::string_view key = c.word("an attribute");
      if (!take(key)) fail("unknown attribute ", key);
    } while (c.accept(','));
    c.expect('}');
  }
  template <class Take>
  void parseOptionalAttributes(Cursor& c, Take&& take) {
    if (c.accept('{')) parseAttributes(c, take);
    c.expectEnd();
  }

  void expectPosition(Cursor& c, std::string_view keyword, size_t position) {
    c.acceptWord(keyword);
    int32_t index = c.index();
    if (static_cast<size_t>(index) != position)
      fail("expected ", keyword, " ", position, ", found ", keyword, " ", index);
  }

  void parseBlock(Cursor& c) {
    Block& block = graph_.blocks.emplace_back();
    expectPosition(c, "block", graph_.blocks.size() - 1);
    block.user_id = c.string();
    parseOptionalAttributes(c, [&](std::string_view key) {
      c.expect('=');
      if (key == "ipu")
        block.ipu_id = c.index();
      else if (key == "src")
        block.source = c.string();
      else
        return false;
      return true;
    });
  }

  void parseStage(Cursor& c) {
    Stage& stage = graph_.stages.emplace_back();
    expectPosition(c, "stage", graph_.stages.size() - 1);
    stage.name = c.string();
    parseOptionalAttributes(c, [&](std::string_view key) {
      c.expect('=');
      if (key == "device")
        stage.device = c.index();
      else
        return false;
      return true;
    });
  }

  void parseExternal(Cursor& c) {
    External& external = graph_.externals.emplace_back();
    expectPosition(c, "external", graph_.externals.size() - 1);
    external.kind = static_cast<InputKind>(findName(kInputKindNames, c.word("a kind of external"), "kind of external"));
    external.name = c.string();
    c.expect(':');
    external.type = parseType(c);
    parseOptionalAttributes(c, [&](std::string_view key) {
      if (key == "trainable") return external.trainable = true;
      c.expect('=');
      if (key == "owner")
        external.owner = c.index();
      else if (key == "initial")
        external.initial = c.real();
      else
        return false;
      return true;
    });
  }

  void parseInput(Cursor& c) {
    c.acceptWord("input");
    Input input;
    input.value = parseDefinition(c, kNone);
    c.expect('=');
    input.kind = static_cast<InputKind>(findName(kInputKindNames, c.word("a kind of input"), "kind of input"));
    input.external = parseTarget(c);
    c.expectEnd();
    graph_.inputs.push_back(input);
  }

  void parseOutput(Cursor& c) {
    c.acceptWord("output");
    Output output;
    output.kind = static_cast<OutputKind>(findName(kOutputKindNames, c.word("a kind of output"), "kind of output"));
    output.target = parseTarget(c);
    output.value = reference(c);
    c.expectEnd();
    graph_.outputs.push_back(output);
  }

  int32_t parseTarget(Cursor& c) {
    if (!c.accept('(')) return kNone;
    int32_t index = c.index();
    c.expect(')');
    return index;
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

  // Sizes and places in bytes must not overflow anywhere later.
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

  std::vector<int64_t> parseIntegers(Cursor& c, char close) {
    std::vector<int64_t> numbers;
    if (c.accept(close)) return numbers;
    do numbers.push_back(c.integer());
    while (c.accept(','));
    c.expect(close);
    return numbers;
  }

  ValueId valueId(Cursor& c) {
    c.expect('%');
    return c.index(kMaxId);
  }
  ValueId reference(Cursor& c) {
    ValueId id = valueId(c);
    references_.emplace_back(id, line_);
    return id;
  }

  int64_t parseOffset(Cursor& c) {
    std::string where = c.here();
    int64_t offset = c.integer();
    if (offset < 0 || offset > kMaxOffset) fail("offset ", offset, " out of range ", where);
    return offset;
  }

  // %5 "name": f32[4,8] view(%3+0)
  ValueId parseDefinition(Cursor& c, NodeId def) {
    ValueId id = valueId(c);
    while (graph_.values.size() <= static_cast<size_t>(id)) graph_.addValue({}, kNone);
    defined_.resize(graph_.values.size(), false);
    if (defined_[id]) fail("%", id, " is defined twice");
    defined_[id] = true;  // also when the rest of the definition is wrong: its uses are not
    Value value{.def = def, .base = id};
    if (c.peek('"')) value.name = c.string();
    c.expect(':');
    value.type = parseType(c);
    if (c.acceptWord("view")) {
      c.expect('(');
      value.base = reference(c);
      c.expect('+');
      value.offset = parseOffset(c);
      c.expect(')');
    }
    graph_.values[id] = std::move(value);
    return id;
  }

  // %5: f32[4,8], [%6: f32[4], _] = aten.op(%1, 2) writes(0: %1 -> %7: f32[4]) {stage=0}
  void parseNode(Cursor& c) {
    Node node;
    node.id = next_node_;
    size_t first_value = definitions_.size();
    parseResults(c, node);
    parseOp(c, node);
    c.expect('(');
    if (!c.accept(')')) {
      do node.args.push_back(parseArg(c));
      while (c.accept(','));
      c.expect(')');
    }
    if (c.acceptWord("writes")) parseWrites(c, node);
    bool view_set = false;
    parseOptionalAttributes(c, [&](std::string_view key) {
      c.expect('=');
      if (key == "view") view_set = true;
      return parseNodeAttribute(c, node, key);
    });
    next_node_ = node.id + 1;
    node_id_limit_ = std::max(node_id_limit_, next_node_);
    for (size_t i = first_value; i < definitions_.size(); ++i) graph_.values[definitions_[i]].def = node.id;
    view_flags_.emplace_back(graph_.nodes.size(), view_set);
    graph_.nodes.push_back(std::move(node));
  }

  bool parseNodeAttribute(Cursor& c, Node& node, std::string_view key) {
    if (key == "id")
      node.id = c.index(kMaxId);
    else if (key == "view")
      node.is_view = parseBool(c);
    else if (key == "block")
      node.block = c.index();
    else if (key == "stage")
      node.stage = c.index();
    else if (key == "of")
      node.forward = c.index();
    else if (key == "phase")
      node.phase = c.index();
    else if (key == "dir")
      node.direction = parseDirection(c);
    else if (key == "draws")
      node.random_draws = c.integer();
    else if (key == "offset")
      node.random_offset = c.integer();
    else if (key == "src")
      node.source = c.string();
    else if (key == "scope")
      node.scope = c.string();
    else
      return false;
    return true;
  }

  Direction parseDirection(Cursor& c) {
    return static_cast<Direction>(findName(kDirectionNames, c.word("a direction"), "direction"));
  }

  bool parseBool(Cursor& c) {
    if (c.acceptWord("true")) return true;
    if (!c.acceptWord("false")) fail("expected true or false ", c.here());
    return false;
  }

  ValueId parseResult(Cursor& c) {
    if (c.acceptWord("_")) return kNone;
    definitions_.push_back(parseDefinition(c, kNone));
    return definitions_.back();
  }

  void parseResults(Cursor& c, Node& node) {
    if (!c.peek('%') && !c.peek('[') && c.peekWord() != "_") return;
    do {
      auto& group = node.results.emplace_back();
      if (!c.accept('[')) {
        group.push_back(parseResult(c));
      } else if (!c.accept(']')) {
        do group.push_back(parseResult(c));
        while (c.accept(','));
        c.expect(']');
      }
    } while (c.accept(','));
    c.expect('=');
  }

  void parseOp(Cursor& c, Node& node) {
    if (c.peek('"')) {
      node.op = c.string();
      return;
    }
    std::string_view text = c.dottedWord("an operator");
    size_t dot = text.find('.');
    if (dot == std::string_view::npos) fail("operator ", text, " has no namespace: write aten.", text);
    node.op = cat(text.substr(0, dot), "::", text.substr(dot + 1));
  }

  void parseWrites(Cursor& c, Node& node) {
    c.expect('(');
    do {
      Write w;
      w.arg = c.index();
      if (c.accept('.')) w.element = c.index();
      c.expect(':');
      w.before = reference(c);
      if (!c.acceptArrow()) fail("expected '->' ", c.here());
      definitions_.push_back(parseDefinition(c, kNone));
      w.after = definitions_.back();
      w.view = graph_.values[w.after].type;
      if (c.acceptWord("at")) {
        w.view = parseType(c);
        c.expect('+');
        w.offset = parseOffset(c);
      }
      node.writes.push_back(std::move(w));
    } while (c.accept(','));
    c.expect(')');
  }

  Arg parseArg(Cursor& c) {
    if (c.accept('%')) {
      if (c.acceptWord("none")) return Arg::id(kNone);
      ValueId id = c.index(kMaxId);
      references_.emplace_back(id, line_);
      return Arg::id(id);
    }
    if (c.peek('"')) return Arg::string(c.string());
    if (c.accept('[')) return parseListArg(c);
    std::string_view word = c.peekWord();
    if (c.acceptWord("none")) return Arg::none();
    if (c.acceptWord("true")) return Arg::boolean(true);
    if (c.acceptWord("false")) return Arg::boolean(false);
    if (word == "generator") return parseMarked(c, Arg::Kind::kGenerator);
    if (word == "device") return parseMarked(c, Arg::Kind::kDevice);
    if (word == "complex") return parseMarked(c, Arg::Kind::kComplex);
    if (word == "number") return parseMarked(c, Arg::Kind::kNumber);
    if (word == "optional") return parseMarked(c, Arg::Kind::kOptionalIdList);
    if (word == "tensors") return parseMarked(c, Arg::Kind::kIdList);
    if (word == "doubles") return parseMarked(c, Arg::Kind::kDoubleList);
    if (word == "bools") return parseMarked(c, Arg::Kind::kBoolList);
    if (word == "strings") return parseMarked(c, Arg::Kind::kStringList);
    return parseNumberArg(c);
  }

  Arg parseNumberArg(Cursor& c) {
    int64_t whole = 0;
    bool is_integer = false;
    double number = c.number(&whole, &is_integer);
    return is_integer ? Arg::integer(whole) : Arg::real(number);
  }

  // Arguments that start with a word of their own.
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
        do a.ints.push_back(c.acceptWord("none") ? kNone : reference(c));
        while (c.accept(','));
        c.expect(']');
        break;
      case Arg::Kind::kGenerator: break;
      default:  // an empty list of a kind
        c.expect('[');
        c.expect(']');
    }
    return a;
  }

  // After the bracket. The first element tells the kind; [] is a list of integers.
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

  Graph graph_;
  int line_ = 0;
  bool opened_ = false, closed_ = false;
  int32_t num_values_ = 0;
  NodeId next_node_ = 0;  // default id: one more than the node before
  NodeId node_id_limit_ = 0;
  std::vector<bool> defined_;                          // by value id
  std::vector<ValueId> definitions_;                   // by nodes, in order
  std::vector<std::pair<ValueId, int>> references_;    // value, line
  std::vector<std::pair<size_t, bool>> view_flags_;    // position of a node, was the flag written
  std::vector<std::pair<int, std::string>> mistakes_;  // line, text
};

}  // namespace

Graph parse(std::string_view text) { return Parser().run(text); }

}  // namespace abele::ir
