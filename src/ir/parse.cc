// Reads the text form line by line. A line with a mistake is reported and skipped, so one run reports all mistakes.
#include <algorithm>
#include <string>
#include <utility>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/cursor.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/text_impl.h"

namespace abele::ir {
namespace {

using text::Cursor;
using text::fail;
using text::parseType;

// Ids index tables, so an absurd id must not make the tables huge.
constexpr int64_t kMaxId = text::kMaxId;
constexpr int64_t kMaxOffset = 1'000'000'000'000'000;

template <size_t kSize>
int findName(const std::array<std::string_view, kSize>& names, std::string_view name, const char* what) {
  auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) fail("unknown ", what, " ", name);
  return static_cast<int>(it - names.begin());
}

class Parser {
 public:
  Graph run(std::string_view text) {
    text::forEachLine(text, line_, mistakes_, [&](Cursor& c) { parseLine(c); });
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
      // The default of the view flag depends on the bases of all results, also of those on later lines.
      for (auto [position, set] : view_flags_)
        if (!set) graph_.nodes[position].is_view = makesOnlyViews(graph_, graph_.nodes[position]);
      graph_.node_id_limit = node_id_limit_;
      return;
    }
    text::refuseMistakes(std::move(mistakes_), ErrorCode::E0202, "a graph", "the text form of docs/ir.md");
  }

  void parseLine(Cursor& c) {
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
      if (key != "values") return readField(c, key, [&](auto&& field) { graphAttributes(graph_, field); });
      c.expect('=');
      num_values_ = c.index(kMaxId);
      return true;
    });
    c.expect('{');
    c.expectEnd();
  }

  // Reads attributes after the opening brace and calls take(key) for each; take reads "=value" and returns whether it
  // knows the key.
  template <class Take>
  void parseAttributes(Cursor& c, Take&& take) {
    do {
      std::string_view key = c.word("an attribute");
      if (!take(key)) fail("unknown attribute ", key);
    } while (c.accept(','));
    c.expect('}');
  }
  // fields: calls a function for each attribute that there may be, as those of text_impl.h do.
  template <class Fields>
  void parseFields(Cursor& c, Fields&& fields) {
    if (c.accept('{')) parseAttributes(c, [&](std::string_view key) { return readField(c, key, fields); });
    c.expectEnd();
  }
  template <class Fields>
  bool readField(Cursor& c, std::string_view key, Fields&& fields) {
    bool is_known = false;
    fields([&](std::string_view name, auto& value, const auto&) {
      if (name != key) return;
      is_known = true;
      read(c, value);
    });
    return is_known;
  }
  static void read(Cursor&, bool& flag) { flag = true; }
  static void read(Cursor& c, std::vector<int32_t>& list) {
    c.expect('=');
    c.expect('[');
    do list.push_back(c.index());
    while (c.accept(','));
    c.expect(']');
  }
  template <class T>
  void read(Cursor& c, T& value) {
    c.expect('=');
    if constexpr (std::is_same_v<T, int32_t>)
      value = c.index();
    else if constexpr (std::is_same_v<T, int64_t>)
      value = c.integer();
    else if constexpr (std::is_same_v<T, double>)
      value = c.real();
    else if constexpr (std::is_same_v<T, Direction>)
      value = static_cast<Direction>(findName(kDirectionNames, c.word("a direction"), "direction"));
    else
      value = c.string();
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
    parseFields(c, [&](auto&& field) { blockAttributes(block, field); });
  }

  void parseStage(Cursor& c) {
    Stage& stage = graph_.stages.emplace_back();
    expectPosition(c, "stage", graph_.stages.size() - 1);
    stage.name = c.string();
    parseFields(c, [&](auto&& field) { stageAttributes(stage, field); });
  }

  void parseExternal(Cursor& c) {
    External& external = graph_.externals.emplace_back();
    expectPosition(c, "external", graph_.externals.size() - 1);
    external.kind = static_cast<InputKind>(findName(kInputKindNames, c.word("a kind of external"), "kind of external"));
    external.name = c.string();
    c.expect(':');
    external.type = parseType(c);
    parseFields(c, [&](auto&& field) { externalAttributes(external, field); });
  }

  void parseInput(Cursor& c) {
    c.acceptWord("input");
    Input input;
    input.value = parseDefinition(c, kNone);
    c.expect('=');
    input.kind = static_cast<InputKind>(findName(kInputKindNames, c.word("a kind of input"), "kind of input"));
    input.external = parseTarget(c);
    parseFields(c, [&](auto&& field) { inputAttributes(input, field); });
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
    defined_[id] = true;  // also when the rest of the definition is wrong, because uses of the value are correct
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
    if (c.accept('{'))
      parseAttributes(c, [&](std::string_view key) {
        if (key != "id" && key != "view") return readField(c, key, [&](auto&& field) { nodeAttributes(node, field); });
        c.expect('=');
        if (key == "id")
          node.id = c.index(kMaxId);
        else
          node.is_view = parseBool(c);
        view_set = view_set || key == "view";
        return true;
      });
    c.expectEnd();
    next_node_ = node.id + 1;
    node_id_limit_ = std::max(node_id_limit_, next_node_);
    for (size_t i = first_value; i < definitions_.size(); ++i) graph_.values[definitions_[i]].def = node.id;
    view_flags_.emplace_back(graph_.nodes.size(), view_set);
    graph_.nodes.push_back(std::move(node));
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
    return text::parseArg(c, '%', [this](int64_t id) { references_.emplace_back(static_cast<ValueId>(id), line_); });
  }

  Graph graph_;
  int line_ = 0;
  bool opened_ = false, closed_ = false;
  int32_t num_values_ = 0;
  NodeId next_node_ = 0;  // default id: one more than the previous node's
  NodeId node_id_limit_ = 0;
  std::vector<bool> defined_;                        // by value id
  std::vector<ValueId> definitions_;                 // values in the order in which nodes define them
  std::vector<std::pair<ValueId, int>> references_;  // value, line
  std::vector<std::pair<size_t, bool>> view_flags_;  // position of a node, and whether its flag was written
  text::Mistakes mistakes_;
};

}  // namespace

Graph parse(std::string_view text) { return Parser().run(text); }

}  // namespace abele::ir
