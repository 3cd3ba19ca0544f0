#include "ir/text.h"

#include <algorithm>
#include <cmath>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/cursor.h"
#include "base/joined.h"
#include "ir/text_impl.h"

namespace abele::ir {
namespace {

using text::doubleText;
using text::isDottedWord;
using text::isWord;
using text::quoted;

std::string idText(int64_t id) { return id >= 0 ? cat("%", id) : std::string("none"); }

// Collects "key=value" pairs and flags that differ from their defaults.
class Attributes {
 public:
  template <class T>
  void add(const char* key, const T& value) {
    append(cat(key, "=", value));
  }
  template <class T, class Default>
  void operator()(const char* key, const T& value, const Default& left_out) {
    if (value != left_out) add(key, value);
  }
  void operator()(const char* key, const std::string& value, const char*) {
    if (!value.empty()) add(key, quoted(value));
  }
  void operator()(const char* key, double value, double) {
    if (value != 0 || std::signbit(value)) add(key, doubleText(value));
  }
  void operator()(const char* key, Direction value, Direction left_out) {
    if (value != left_out) add(key, directionName(value));
  }
  void operator()(const char* key, const std::vector<int32_t>& value, const std::vector<int32_t>&) {
    if (!value.empty()) append(cat(key, "=[", joined(value), "]"));
  }
  void operator()(const char* key, bool value, bool) {
    if (value) append(key);
  }
  /// " {a, b}" or nothing.
  std::string braced() const { return text_.empty() ? text_ : cat(" {", text_, "}"); }

 private:
  void append(std::string pair) {
    if (!text_.empty()) text_ += ", ";
    text_ += pair;
  }
  std::string text_;
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string run() {
    Attributes header;
    graphAttributes(graph_, header);
    if (graph_.values.size() != definedLimit()) header.add("values", graph_.values.size());
    out_ = cat("graph @", isWord(graph_.name) ? graph_.name : quoted(graph_.name), header.braced(), " {\n");
    printTables();
    NodeId next = 0;
    for (const Node& node : graph_.nodes) {
      printNode(node, next);
      next = node.id + 1;
    }
    for (const Output& output : graph_.outputs)
      out_ += cat("  output ", outputKindName(output.kind), target(output.target), " ", idText(output.value), "\n");
    return out_ + "}\n";
  }

 private:
  // One more than the largest id that the text defines.
  size_t definedLimit() const {
    ValueId limit = 0;
    for (const Input& input : graph_.inputs) limit = std::max(limit, input.value + 1);
    for (const Node& node : graph_.nodes) forEachResult(node, [&](ValueId v) { limit = std::max(limit, v + 1); });
    return static_cast<size_t>(limit);
  }

  static std::string target(int32_t index) { return index == kNone ? std::string() : cat("(", index, ")"); }

  // %5 "name": f32[4,8] view(%3+0)
  std::string definition(ValueId id) const {
    const Value& value = graph_.values[id];
    std::string text = idText(id);
    if (!value.name.empty()) text += cat(" ", quoted(value.name));
    text += cat(": ", value.type.str());
    if (value.base != id) text += cat(" view(", idText(value.base), "+", value.offset, ")");
    return text;
  }

  void printTables() {
    for (size_t i = 0; i < graph_.blocks.size(); ++i) {
      const Block& block = graph_.blocks[i];
      Attributes attributes;
      blockAttributes(block, attributes);
      out_ += cat("  block ", i, " ", quoted(block.user_id), attributes.braced(), "\n");
    }
    for (size_t i = 0; i < graph_.stages.size(); ++i) {
      Attributes attributes;
      stageAttributes(graph_.stages[i], attributes);
      out_ += cat("  stage ", i, " ", quoted(graph_.stages[i].name), attributes.braced(), "\n");
    }
    for (size_t i = 0; i < graph_.externals.size(); ++i) {
      const External& external = graph_.externals[i];
      Attributes attributes;
      externalAttributes(external, attributes);
      out_ += cat("  external ", i, " ", inputKindName(external.kind), " ", quoted(external.name), ": ",
                  external.type.str(), attributes.braced(), "\n");
    }
    for (const Input& input : graph_.inputs) {
      Attributes attributes;
      inputAttributes(input, attributes);
      out_ += cat("  input ", definition(input.value), " = ", inputKindName(input.kind), target(input.external),
                  attributes.braced(), "\n");
    }
  }

  void printNode(const Node& node, NodeId expected_id) {
    out_ += "  ";
    if (!node.results.empty()) {
      auto single = [&](ValueId id) { return id >= 0 ? definition(id) : std::string("_"); };
      out_ += joined(node.results, [&](const std::vector<ValueId>& group) {
        return group.size() == 1 ? single(group[0]) : cat("[", joined(group, single), "]");
      });
      out_ += " = ";
    }
    out_ += cat(opText(node.op), "(", joined(node.args, [](const Arg& a) { return text::argText(a, '%'); }), ")");
    if (!node.writes.empty())
      out_ += cat(" writes(", joined(node.writes, [&](const Write& w) { return writeText(w); }), ")");
    Attributes attributes;
    if (node.id != expected_id) attributes.add("id", node.id);
    if (node.is_view != makesOnlyViews(graph_, node)) attributes.add("view", node.is_view);
    nodeAttributes(node, attributes);
    out_ += cat(attributes.braced(), "\n");
  }

  // Writes "0: %1 -> %9: f32[4,8] at f32[4]{8}+2"; the region is omitted when it is all of the base.
  std::string writeText(const Write& w) const {
    std::string text = cat(w.arg);
    if (w.element != kNone) text += cat(".", w.element);
    text += cat(": ", idText(w.before), " -> ", definition(w.after));
    if (w.view != graph_.values[w.after].type || w.offset != 0) text += cat(" at ", w.view.str(), "+", w.offset);
    return text;
  }

  // aten::add.Tensor is written aten.add.Tensor; names of another form are quoted.
  static std::string opText(const std::string& op) {
    size_t colons = op.find("::");
    if (colons == std::string::npos || !isWord(op.substr(0, colons)) || !isDottedWord(op.substr(colons + 2)))
      return quoted(op);
    return cat(op.substr(0, colons), ".", op.substr(colons + 2));
  }

  const Graph& graph_;
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph) { return Printer(graph).run(); }

}  // namespace abele::ir
