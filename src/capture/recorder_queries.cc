// Recorder: what operators in operators/ ask about the program recorded so far.
#include <algorithm>

#include "capture/recorder.h"

namespace abele::capture {
namespace {

/// The constant that a one-element operand always is.
struct Sum {
  ir::ValueId root = ir::kNone;  // kNone: a plain number
  int64_t offset = 0;
};

}  // namespace

std::optional<int64_t> Recorder::constantDifference(const at::Tensor& start, const at::Tensor& stop) {
  const auto numberOf = [&](ir::ValueId value) -> std::optional<int64_t> {
    for (const ir::Input& input : graph().inputs) {
      if (input.value != graph().baseOf(value) || input.kind != ir::InputKind::kConstant) continue;
      if (varies(input.value)) return std::nullopt;
      const at::Tensor& constant = recording_.constants[input.external];
      if (constant.numel() != 1 || !at::isIntegralType(constant.scalar_type(), false)) return std::nullopt;
      const DispatchMode::Paused paused(*mode_);
      return constant.item<int64_t>();
    }
    return std::nullopt;
  };
  const auto sumOf = [&](ir::ValueId value) {
    Sum sum{value};
    while (true) {
      const ir::Value& held = graph().values[sum.root];
      if (held.type.numel() == 1 && graph().values[held.base].type.numel() == 1) sum.root = held.base;
      if (const auto number = numberOf(sum.root)) return Sum{ir::kNone, sum.offset + *number};
      const ir::NodeId def = graph().values[sum.root].def;
      if (def == ir::kNone) return sum;
      const ir::Node& node = graph().nodes[def];
      const bool adds = node.op == "aten::add.Tensor", subtracts = node.op == "aten::sub.Tensor";
      if (node.op == "aten::_to_copy" || node.op == "aten::clone") {
        const ir::Value& from = graph().values[node.args[0].i];
        if (from.type.numel() != 1 || !at::isIntegralType(static_cast<at::ScalarType>(from.type.dtype), false))
          return sum;
        sum.root = static_cast<ir::ValueId>(node.args[0].i);
        continue;
      }
      if ((!adds && !subtracts) || node.args[2].i != 1 || node.args[0].kind != Arg::Kind::kId) return sum;
      std::optional<int64_t> term;
      ir::ValueId rest = static_cast<ir::ValueId>(node.args[0].i);
      const Arg& second = node.args[1];
      if (second.kind == Arg::Kind::kNumber && second.number_kind == Arg::Kind::kInt) term = second.i;
      if (second.kind == Arg::Kind::kId) {
        term = numberOf(static_cast<ir::ValueId>(second.i));
        if (!term && adds) {
          term = numberOf(rest);
          rest = static_cast<ir::ValueId>(second.i);
        }
      }
      if (!term || graph().values[rest].type.numel() != 1) return sum;
      sum.offset += adds ? *term : -*term;
      sum.root = rest;
    }
  };
  const Sum a = sumOf(valueOf(start)), b = sumOf(valueOf(stop));
  if (a.root != b.root) return std::nullopt;
  return b.offset - a.offset;
}

int64_t Recorder::numOperators(const std::string& part) const {
  return std::count_if(graph().nodes.begin(), graph().nodes.end(),
                       [&](const ir::Node& node) { return node.op.find(part) != std::string::npos; });
}

int64_t Recorder::numReaders(const at::Tensor& tensor) {
  const ir::ValueId base = graph().baseOf(valueOf(tensor));
  int64_t count = 0;
  for (const ir::Node& node : graph().nodes) {
    if (node.is_view) continue;
    ir::forEachOperand(node, [&](ir::ValueId v) { count += graph().baseOf(v) == base; });
  }
  return count;
}

bool Recorder::isArgument(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const Place place = table_.find(tensor);
  return place && place.segment->is_input && place.segment->kind == ir::InputKind::kArgument && !place.segment->written;
}

}  // namespace abele::capture
