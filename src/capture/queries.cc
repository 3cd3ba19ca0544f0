#include "capture/queries.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::capture {
namespace {

/// The constant integer that a value always is.
std::optional<int64_t> numberOf(const Recording& recording, const GraphWriter& writer, ir::ValueId value) {
  const ir::Graph& graph = recording.graph;
  for (const ir::Input& input : graph.inputs) {
    if (input.value != graph.baseOf(value) || input.kind != ir::InputKind::kConstant) continue;
    if (writer.varies(input.value)) return std::nullopt;
    const at::Tensor& constant = recording.constants[input.external];
    if (constant.numel() != 1 || !at::isIntegralType(constant.scalar_type(), false)) return std::nullopt;
    return constant.item<int64_t>();
  }
  return std::nullopt;
}

/// A one-element integer as a sum of multiples of others, which are named by numbers, and a constant.
struct Sum {
  std::map<int64_t, int64_t> factors;  // only factors that are not 0
  int64_t offset = 0;
  bool operator==(const Sum&) const = default;

  Sum& add(const Sum& other, int64_t factor) {
    offset += factor * other.offset;
    for (const auto& [term, times] : other.factors) {
      if ((factors[term] += factor * times) == 0) factors.erase(term);
    }
    return *this;
  }
};

/// Brings the integers of a program into the form of sums. Operators that are called twice with the same operands give
/// the same value twice, unless they are random.
class Sums {
 public:
  Sums(const Recording& recording, const GraphWriter& writer) : recording_(recording), writer_(writer) {}

  Sum of(ir::ValueId value) {
    const auto known = known_.find(value);
    if (known != known_.end()) return known->second;
    ++depth_;
    Sum sum = depth_ > kDeepest ? whole(value) : compute(value);
    --depth_;
    return known_.emplace(value, std::move(sum)).first->second;
  }

 private:
  /// A part of a sum that is not itself a sum: a value, or the result of an operator whose operands are in normal form.
  struct Term {
    std::string op;
    std::vector<Arg> args;
    int64_t position = 0;
    bool operator==(const Term&) const = default;
  };
  static constexpr int kDeepest = 200;

  template <class T>
  static int64_t numberAmong(std::vector<T>& known, T item) {
    const auto found = std::ranges::find(known, item);
    if (found != known.end()) return found - known.begin();
    known.push_back(std::move(item));
    return static_cast<int64_t>(known.size()) - 1;
  }

  Sum termOf(Term term) { return Sum{{{numberAmong(terms_, std::move(term)), 1}}, 0}; }

  Sum whole(ir::ValueId value) {
    const ir::Value& held = graph().values[value];
    return termOf({"", {Arg::id(held.base), Arg::integer(static_cast<int64_t>(held.type.dtype))}, held.offset});
  }

  const ir::Graph& graph() const { return recording_.graph; }

  bool isInteger(ir::ValueId value) const {
    const Type& type = graph().values[value].type;
    return type.numel() == 1 && at::isIntegralType(static_cast<at::ScalarType>(type.dtype), false);
  }

  /// The argument as a sum; nothing if it is not an integer.
  std::optional<Sum> argument(const Arg& arg) {
    const bool is_number = arg.kind == Arg::Kind::kNumber && arg.number_kind == Arg::Kind::kInt;
    if (is_number || arg.kind == Arg::Kind::kInt) return Sum{{}, arg.i};
    if (arg.kind != Arg::Kind::kId || arg.i < 0 || !isInteger(static_cast<ir::ValueId>(arg.i))) return std::nullopt;
    return of(static_cast<ir::ValueId>(arg.i));
  }

  /// What an operator adds, subtracts or multiplies.
  std::optional<Sum> arithmetic(const std::string& name, const std::vector<Arg>& args) {
    const std::optional<Sum> first = args.empty() ? std::nullopt : argument(args[0]);
    if (!first) return std::nullopt;
    if (name == "_to_copy" || name == "clone") return first;
    if (name == "neg") return Sum().add(*first, -1);
    const std::optional<Sum> second = args.size() < 2 ? std::nullopt : argument(args[1]);
    if (!second) return std::nullopt;
    if (name == "mul" && second->factors.empty()) return Sum().add(*first, second->offset);
    if (name == "mul" && first->factors.empty()) return Sum().add(*second, first->offset);
    const bool adds = name == "add", subtracts = name == "sub", from = name == "rsub";
    if (!adds && !subtracts && !from) return std::nullopt;
    if (args.size() < 3 || args[2].kind == Arg::Kind::kDouble) return std::nullopt;
    const int64_t alpha = args[2].i;
    return from ? Sum(*second).add(*first, -alpha) : Sum(*first).add(*second, adds ? alpha : -alpha);
  }

  Sum compute(ir::ValueId value) {
    const ir::ValueId base = graph().baseOf(value);
    if (!isInteger(value) || !isInteger(base) || graph().values[base].type.dtype != graph().values[value].type.dtype)
      return whole(value);
    if (const auto number = numberOf(recording_, writer_, base)) return Sum{{}, *number};
    const ir::NodeId def = graph().values[base].def;
    if (def == ir::kNone) return whole(base);
    const ir::Node& node = graph().nodes[def];
    if (!node.op.starts_with("aten::") || node.isRandom()) return whole(base);
    std::string name = node.op.substr(6, node.op.find('.') - 6);
    int64_t position = 0;
    if (!node.writes.empty()) {  // in place: what it does to the operand that it writes
      const bool is_plain = node.writes.size() == 1 && node.writes[0].arg == 0 && name.size() > 1 && name.back() == '_';
      if (!is_plain || node.writes[0].after != base || node.writes[0].view.numel() != 1) return whole(base);
      name.pop_back();
    } else {
      for (const auto& group : node.results) {
        const auto found = std::ranges::find(group, base);
        if (found != group.end()) break;
        position += static_cast<int64_t>(group.size());
      }
    }
    if (auto sum = arithmetic(name, node.args)) return std::move(*sum);
    Term term{node.op, node.args, position};
    for (Arg& arg : term.args) {
      if (arg.kind != Arg::Kind::kId) continue;
      if (const auto sum = argument(arg)) arg = Arg::intList({numberAmong(sums_, *sum)});
    }
    return termOf(std::move(term));
  }

  const Recording& recording_;
  const GraphWriter& writer_;
  std::vector<Term> terms_;
  std::vector<Sum> sums_;
  std::map<ir::ValueId, Sum> known_;
  int depth_ = 0;
};

}  // namespace

std::optional<int64_t> constantDifference(const Recording& recording, const GraphWriter& writer, ir::ValueId start,
                                          ir::ValueId stop) {
  Sums sums(recording, writer);
  const Sum difference = sums.of(stop).add(sums.of(start), -1);
  if (!difference.factors.empty()) return std::nullopt;
  return difference.offset;
}

int64_t numOperators(const ir::Graph& graph, const std::string& part) {
  return std::ranges::count_if(graph.nodes,
                               [&](const ir::Node& node) { return node.op.find(part) != std::string::npos; });
}

int64_t numReaders(const ir::Graph& graph, ir::ValueId value) {
  const ir::ValueId base = graph.baseOf(value);
  int64_t count = 0;
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view) continue;
    ir::forEachOperand(node, [&](ir::ValueId v) { count += graph.baseOf(v) == base; });
  }
  return count;
}

}  // namespace abele::capture
