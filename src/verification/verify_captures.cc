// The comparisons of verify: two captures of one program, two tensors.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include "base/cat.h"
#include "compile/tensors.h"
#include "ir/rewrite.h"
#include "verification/verify.h"

namespace abele::verification {
namespace {

/// Ignores lines, because the same call may come from another place in the program.
bool sameProgram(ir::Node a, ir::Node b) {
  a.time_ns = b.time_ns = 0;
  a.source = b.source = a.scope = b.scope = {};
  return a == b;
}

template <class Numbers>
std::string listText(const Numbers& numbers) {
  static constexpr size_t kMost = 16;
  std::string text;
  for (size_t i = 0; i < std::min(numbers.size(), kMost); ++i) text += cat(i ? ", " : "", numbers[i]);
  return cat("[", text, numbers.size() > kMost ? ", ...]" : "]");
}

std::string argumentText(const Arg& arg) {
  using Kind = Arg::Kind;
  switch (arg.kind == Kind::kNumber ? arg.number_kind : arg.kind) {
    case Kind::kNone: return "none";
    case Kind::kBool: return arg.i ? "true" : "false";
    case Kind::kInt: return cat(arg.i);
    case Kind::kDouble: return cat(arg.d);
    case Kind::kComplex: return cat(arg.d, " + ", arg.d2, "i");
    case Kind::kString:
    case Kind::kDevice: return arg.s;
    case Kind::kIntList:
    case Kind::kBoolList: return listText(arg.ints);
    case Kind::kDoubleList: return listText(arg.doubles);
    case Kind::kId: return arg.i < 0 ? "no tensor" : cat("value %", arg.i);
    case Kind::kIdList:
    case Kind::kOptionalIdList: return cat("values ", listText(arg.ints));
    default: return "another argument";
  }
}

/// The position of the first node that reads a value or a view of it; past the last node if none does.
size_t firstReader(const ir::Graph& graph, ir::ValueId value) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    bool reads = false;
    ir::forEachOperand(graph.nodes[i], [&](ir::ValueId v) { reads = reads || graph.baseOf(v) == value; });
    if (reads && !graph.nodes[i].is_view) return i;
  }
  return graph.nodes.size();
}

/// The difference between two nodes, as text.
std::pair<std::string, std::string> partingTexts(const ir::Node& a, const ir::Node& b) {
  if (a.op != b.op || a.args.size() != b.args.size()) return {a.op, b.op};
  for (size_t i = 0; i < a.args.size(); ++i)
    if (a.args[i] != b.args[i])
      return {cat("argument ", i, " is ", argumentText(a.args[i])),
              cat("argument ", i, " is ", argumentText(b.args[i]))};
  return {cat(a.op, " at ", a.source), cat(b.op, " at ", b.source)};
}

std::optional<Parting> compareNodes(const ir::Graph& compiled, const ir::Graph& now) {
  const size_t count = std::max(compiled.nodes.size(), now.nodes.size());
  for (size_t i = 0; i < count; ++i) {
    const bool both = i < compiled.nodes.size() && i < now.nodes.size();
    if (both && sameProgram(compiled.nodes[i], now.nodes[i])) continue;
    Parting parting{static_cast<int64_t>(i), differenceOf(kProgram)};
    Difference& difference = parting.difference;
    describeNode(i < compiled.nodes.size() ? compiled.nodes[i] : now.nodes[i], compiled, difference);
    if (both) {
      std::tie(difference.found, difference.expected) = partingTexts(compiled.nodes[i], now.nodes[i]);
    } else {
      (i < now.nodes.size() ? difference.expected : difference.found) = difference.op;
    }
    difference.reason =
        "forward did something else for this micro-batch than when it was compiled: a number that Python or C++ code "
        "computes is part of the program";
    return parting;
  }
  return std::nullopt;
}

std::string numberAt(const at::Tensor& flat, int64_t index) {
  const at::Scalar value = flat[index].item();
  if (value.isBoolean()) return value.toBool() ? "True" : "False";
  if (value.isIntegral(/*includeBool=*/false)) return cat(value.toLong());
  if (value.isComplex()) {
    const auto number = value.toComplexDouble();
    return cat(number.real(), " + ", number.imag(), "i");
  }
  const double number = value.toDouble();
  return flat.scalar_type() == at::kFloat ? cat(static_cast<float>(number)) : cat(number);
}

}  // namespace

std::optional<Parting> compareCaptures(const ir::Graph& compiled, const std::vector<at::Tensor>& compiled_constants,
                                       const ir::Graph& now, const std::vector<at::Tensor>& constants) {
  std::optional<Parting> first = compareNodes(compiled, now);
  for (const ir::Input& input : compiled.inputs) {
    if (input.kind != ir::InputKind::kConstant) continue;
    const auto external = static_cast<size_t>(input.external);
    if (external >= constants.size() || external >= compiled_constants.size()) continue;
    const at::Tensor &before = compiled_constants[external], &after = constants[external];
    const std::string& name = compiled.externals[external].name;
    if (!before.defined() || !after.defined() || name == capture::kLossGradient || isSame(before, after)) continue;
    const size_t reader = firstReader(compiled, input.value);
    if (first && first->position <= static_cast<int64_t>(reader)) continue;
    first = Parting{static_cast<int64_t>(reader), differenceOf(kConstant)};
    if (reader < compiled.nodes.size()) describeNode(compiled.nodes[reader], compiled, first->difference);
    compareElements(before, after, first->difference);
    first->difference.reason =
        cat("the program holds ", name, " as it was when it was compiled; for this micro-batch eager has another one. ",
            "Pass it as an argument of forward, or register it as a buffer");
  }
  return first;
}

void describeNode(const ir::Node& node, const ir::Graph& lowered, Difference& difference) {
  difference.op = node.op;
  difference.line = node.source;
  difference.scope = node.scope;
  difference.direction = exe::directionName(static_cast<exe::Direction>(node.direction));
  const auto same = std::ranges::find_if(
      lowered.nodes, [&](const ir::Node& each) { return each.id == node.id && each.op == node.op; });
  if (same != lowered.nodes.end()) difference.stage = same->stage;
}

bool isSame(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && fingerprint(a) == fingerprint(b);
}

uint64_t fingerprint(const at::Tensor& given) {
  const c10::InferenceMode no_autograd;
  const at::Tensor tensor = given.detach().cpu().resolve_conj().resolve_neg().contiguous();
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto dtype = static_cast<int32_t>(tensor.scalar_type());
  XXH3_64bits_update(&state, &dtype, sizeof dtype);
  XXH3_64bits_update(&state, tensor.sizes().data(), tensor.sizes().size() * sizeof(int64_t));
  if (tensor.numel() > 0) XXH3_64bits_update(&state, tensor.const_data_ptr(), tensor.nbytes());
  return XXH3_64bits_digest(&state);
}

at::Tensor hostCopy(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
}

void compareElements(const at::Tensor& found, const at::Tensor& expected, Difference& difference) {
  const c10::InferenceMode no_autograd;
  difference.type = contiguousType(compile::typeOf(expected).dtype, expected.sizes().vec()).str();
  if (found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type()) {
    difference.found = contiguousType(compile::typeOf(found).dtype, found.sizes().vec()).str();
    difference.expected = difference.type;
    return;
  }
  const at::Tensor a = found.cpu().contiguous().view({-1}), b = expected.cpu().contiguous().view({-1});
  const auto* left = static_cast<const char*>(a.const_data_ptr());
  const auto* right = static_cast<const char*>(b.const_data_ptr());
  const auto width = static_cast<int64_t>(a.itemsize());
  difference.of = a.numel();
  difference.elements = 0;
  for (int64_t i = a.numel() - 1; i >= 0; --i) {
    if (std::memcmp(left + i * width, right + i * width, static_cast<size_t>(width)) == 0) continue;
    ++difference.elements;
    difference.found = numberAt(a, i);
    difference.expected = numberAt(b, i);
    difference.element.assign(expected.sizes().size(), 0);
    int64_t rest = i;
    for (int64_t d = expected.dim() - 1; d >= 0; --d) {
      difference.element[d] = rest % expected.size(d);
      rest /= expected.size(d);
    }
  }
}

}  // namespace abele::verification
