#include "capture/same_program.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/error.h"
#include "capture/draws.h"
#include "capture/elements_text.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

constexpr int64_t kShown = 4;  // elements of a tensor, as text

using ir::ValueId;

bool varies(const Recording& recording, ValueId value) {
  const auto base = static_cast<size_t>(recording.graph.baseOf(value));
  return base < recording.varies.size() && recording.varies[base];
}

class Comparison {
 public:
  Comparison(const Recording& first, const Recording& second)
      : first_(first), second_(second), second_of_(first.graph.values.size(), ir::kNone) {
    std::map<std::pair<ir::InputKind, std::string>, ValueId> inputs;
    for (const ir::Input& input : second.graph.inputs) inputs[keyOf(second, input)] = input.value;
    for (const ir::Input& input : first.graph.inputs)
      if (const auto found = inputs.find(keyOf(first, input)); found != inputs.end())
        second_of_[static_cast<size_t>(input.value)] = found->second;
  }

  std::optional<Parting> run() {
    const std::vector<const ir::Node*> ours = compared(first_, second_.lacks_backward), theirs = compared(second_);
    for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
      const ir::Node* const a = i < ours.size() ? ours[i] : nullptr;
      const ir::Node* const b = i < theirs.size() ? theirs[i] : nullptr;
      const bool is_same = a != nullptr && b != nullptr && isSame(*a, *b);
      if (is_same) continue;
      if (a == nullptr || b == nullptr || a->op != b->op) texts_ = {a ? a->op : "nothing", b ? b->op : "nothing"};
      const ir::Node& shown = a ? *a : *b;
      return Parting{shown.op, shown.source, shown.scope, texts_.first, texts_.second};
    }
    if (areOutputsSame()) return std::nullopt;
    return Parting{.first = texts_.first, .second = texts_.second};
  }

 private:
  static std::pair<ir::InputKind, std::string> keyOf(const Recording& recording, const ir::Input& input) {
    const bool is_argument = input.kind == ir::InputKind::kArgument;
    const auto external = static_cast<size_t>(input.external);
    return {input.kind, is_argument ? cat(input.external) : recording.graph.externals[external].name};
  }

  /// Those that compute what may differ between micro-batches, or are run for their effect.
  static std::vector<const ir::Node*> compared(const Recording& recording, bool forward_alone = false) {
    std::vector<const ir::Node*> nodes;
    for (const ir::Node& node : recording.graph.nodes) {
      if (forward_alone && node.direction == ir::Direction::kBackward) continue;
      bool has_results = false, has_varying = false;
      ir::forEachResult(node, [&](ValueId value) {
        has_results = true;
        has_varying = has_varying || varies(recording, value);
      });
      if (has_varying || !has_results) nodes.push_back(&node);
    }
    return nodes;
  }

  bool part(std::string first, std::string second) {
    texts_ = {std::move(first), std::move(second)};
    return false;
  }

  std::string textOf(const Recording& recording, ValueId value) const {
    if (value < 0) return "no tensor";
    const std::string type = recording.graph.values[value].type.str();
    if (varies(recording, value)) return cat("a value that may vary, ", type);
    const auto print = recording.prints.find(value);
    const bool is_shown = print != recording.prints.end() && !print->second.text.empty();
    return is_shown ? cat(type, " ", print->second.text) : cat("a constant ", type);
  }

  bool isSameValue(ValueId a, ValueId b) {
    if (a < 0 && b < 0) return true;
    bool is_same = a >= 0 && b >= 0 && varies(first_, a) == varies(second_, b);
    if (is_same && varies(first_, a)) {
      if (second_of_[static_cast<size_t>(a)] == b) return true;
      return part(textOf(first_, a), "another value");
    }
    if (is_same) {
      const auto ours = first_.prints.find(a), theirs = second_.prints.find(b);
      const bool are_known = ours != first_.prints.end() && theirs != second_.prints.end();
      is_same = first_.graph.values[a].type.dtype == second_.graph.values[b].type.dtype &&
                (!are_known || ours->second.hash == theirs->second.hash);
    }
    return is_same || part(textOf(first_, a), textOf(second_, b));
  }

  static std::string textOf(Arg arg) {
    if (arg.kind == Arg::Kind::kNumber) arg.kind = arg.number_kind;
    return text::argText(arg, '%');
  }

  bool isSameArgument(const Arg& a, const Arg& b) {
    if (!a.holdsIds() || a.kind != b.kind) return a == b || part(textOf(a), textOf(b));
    if (a.kind == Arg::Kind::kId) return isSameValue(static_cast<ValueId>(a.i), static_cast<ValueId>(b.i));
    if (a.ints.size() != b.ints.size()) return part(cat(a.ints.size(), " tensors"), cat(b.ints.size(), " tensors"));
    for (size_t i = 0; i < a.ints.size(); ++i)
      if (!isSameValue(static_cast<ValueId>(a.ints[i]), static_cast<ValueId>(b.ints[i]))) return false;
    return true;
  }

  bool isSameMade(ValueId a, ValueId b) {
    if (a < 0 || b < 0) return (a < 0 && b < 0) || part(textOf(first_, a), textOf(second_, b));
    const ir::Value &ours = first_.graph.values[a], &theirs = second_.graph.values[b];
    if (ours.type != theirs.type || ours.offset != theirs.offset || varies(first_, a) != varies(second_, b))
      return part(textOf(first_, a), textOf(second_, b));
    second_of_[static_cast<size_t>(a)] = b;
    return true;
  }

  bool isSame(const ir::Node& a, const ir::Node& b) {
    if (a.op != b.op || a.args.size() != b.args.size() || a.results.size() != b.results.size()) return false;
    const bool calls_host = a.op == "abele_op::host_call";  // each capture registers its functions under new numbers
    for (size_t i = 0; i < a.args.size(); ++i)
      if (!(calls_host && a.args[i].kind == Arg::Kind::kInt) && !isSameArgument(a.args[i], b.args[i])) return false;
    if (a.random_draws != b.random_draws || a.random_offset != b.random_offset || a.normals != b.normals)
      return part(cat("random numbers from ", a.random_offset), cat("random numbers from ", b.random_offset));
    if (a.direction != b.direction || a.block != b.block || a.is_view != b.is_view)
      return part(cat("block ", a.block), cat("block ", b.block));
    for (size_t i = 0; i < a.results.size(); ++i) {
      if (a.results[i].size() != b.results[i].size()) return part("a list of results", "a list of others");
      for (size_t k = 0; k < a.results[i].size(); ++k)
        if (!isSameMade(a.results[i][k], b.results[i][k])) return false;
    }
    if (a.writes.size() != b.writes.size()) return part("other writes", "other writes");
    for (size_t i = 0; i < a.writes.size(); ++i) {
      const ir::Write &ours = a.writes[i], &theirs = b.writes[i];
      if (ours.arg != theirs.arg || ours.element != theirs.element || ours.view != theirs.view ||
          ours.offset != theirs.offset)
        return part(cat("a write into ", ours.view.str()), cat("a write into ", theirs.view.str()));
      if (!isSameMade(ours.after, theirs.after)) return false;
    }
    return true;
  }

  std::string targetOf(const Recording& recording, const ir::Output& output) const {
    const bool names = output.kind == ir::OutputKind::kGradient || output.kind == ir::OutputKind::kUpdate;
    return names ? recording.graph.externals[static_cast<size_t>(output.target)].name : cat("result ", output.target);
  }

  bool areOutputsSame() {
    std::vector<ir::Output> a = first_.graph.outputs;
    const std::vector<ir::Output>& b = second_.graph.outputs;
    if (second_.lacks_backward)
      std::erase_if(a, [](const ir::Output& output) { return output.kind == ir::OutputKind::kGradient; });
    if (a.size() != b.size() || first_.result_output != second_.result_output)
      return part(cat(a.size(), " results and updates"), cat(b.size(), " results and updates"));
    for (size_t i = 0; i < a.size(); ++i) {
      const std::string target = targetOf(first_, a[i]);
      const bool is_same_target = a[i].kind == b[i].kind && target == targetOf(second_, b[i]);
      if (!is_same_target) return part(target, targetOf(second_, b[i]));
      const bool is_result =
          a[i].kind == ir::OutputKind::kResult && !varies(first_, a[i].value) && !varies(second_, b[i].value);
      if (is_result ? !isSameTensor(first_.results[a[i].target], second_.results[a[i].target], target)
                    : !isSameValue(a[i].value, b[i].value))
        return false;
    }
    for (size_t i = 0; i < std::min(first_.host_results.size(), second_.host_results.size()); ++i)
      if (!isSameTensor(first_.host_results[i], second_.host_results[i], "a result on the host")) return false;
    return true;
  }

  bool isSameTensor(const at::Tensor& a, const at::Tensor& b, const std::string& name) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined() || part(name, "no tensor");
    const ContentsPrint ours = printOf(a), theirs = printOf(b);
    return ours.hash == theirs.hash || part(cat(name, " ", ours.text), cat(name, " ", theirs.text));
  }

  const Recording& first_;
  const Recording& second_;
  std::vector<ValueId> second_of_;  // by value of the first
  std::pair<std::string, std::string> texts_;
};

}  // namespace

std::optional<Parting> compare(const Recording& first, const Recording& second) {
  return Comparison(first, second).run();
}

void requireUnseeded(const Recording& first, const Recording& second) {
  if (!first.seeded_at.empty() && first.seeded_at == second.seeded_at)
    throwUser(ErrorCode::E0106, seededText(first.seeded_at));
}

ContentsPrint printOf(const at::Tensor& given) {
  if (given.is_meta() || given.layout() != at::kStrided || !given.has_storage()) return {};
  const c10::InferenceMode no_autograd;
  // Forward-mode derivatives make zeros without memory.
  const at::Tensor dense = given._is_zerotensor() ? at::zeros(given.sizes(), given.options()) : given.detach();
  const at::Tensor flat = dense.cpu().resolve_conj().resolve_neg().contiguous().view({-1});
  const std::string type = contiguousType(typeOf(given).dtype, given.sizes().vec()).str();
  const std::string_view bytes(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
  const uint64_t hash = std::hash<std::string_view>()(bytes) * 31 + std::hash<std::string>()(type);
  return {hash, cat("[", elementsText(flat, kShown), "]")};
}

}  // namespace abele::capture
