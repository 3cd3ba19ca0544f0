#include "capture/losses.h"

#include <algorithm>

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>

#include "base/error.h"

namespace abele::capture {

Losses::Unwrapped Losses::unwrapped(const at::Tensor& loss) {
  Unwrapped result{loss};
  for (;;) {
    if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(result.tensor)) {
      result = {wrapper->value(), true};
    } else if (const auto* batched = at::functorch::maybeGetBatchedImpl(result.tensor)) {
      result.tensor = at::Tensor(batched->value());
    } else {
      return result;
    }
  }
}

void Losses::passOver(ir::ValueId value, const std::string& line) {
  // Below the transform the same operator ran on what it wraps, and was taken for a loss.
  std::erase_if(marks_, [&](const Mark& mark) { return mark.value == value; });
  passed_over_ = line;
}

void Losses::mark(const at::Tensor& loss, ir::ValueId value, const std::string& line, int64_t summed_rows) {
  marks_.push_back({loss, value, line, summed_rows});
}

bool Losses::isSumOver(const at::Tensor& loss, double rows) const {
  return !marks_.empty() && marks_.back().summed_rows > 0 && marks_.back().tensor.is_same(loss) &&
         rows == static_cast<double>(marks_.back().summed_rows);
}

std::pair<at::Tensor, ir::ValueId> Losses::find(const ir::Graph& graph) const {
  std::vector<const Mark*> marks;
  for (const Mark& mark : marks_)
    if (std::ranges::find(marks, mark.value, &Mark::value) == marks.end()) marks.push_back(&mark);
  ABELE_REQUIRE(
      !marks.empty(), E0102,
      {.what = "a training model marks no loss",
       .found = passed_over_ ? cat("only one that torch.func differentiates itself, ", *passed_over_) : "",
       .expected = cat("one loss in forward: a loss function of torch, or ", inLanguage("abele::identityLoss")),
       .remedy = cat("return ", inLanguage("abele::identityLoss(loss, abele::Reduction::kNone)"), " from forward")});
  std::vector<const Mark*> left;
  for (const Mark* mark : marks) {
    const bool feeds_another = std::ranges::any_of(
        marks, [&](const Mark* other) { return other != mark && ir::reaches(graph, mark->value, other->value); });
    if (!feeds_another) left.push_back(mark);
  }
  std::string found = cat(left.size(), " losses");
  for (const Mark* mark : left) found += cat(", ", mark->line.empty() ? "at an unknown line" : mark->line);
  ABELE_REQUIRE(left.size() == 1, E0103,
                {.what = "Multiple independent losses found in graph",
                 .found = found,
                 .expected = "one",
                 .remedy = cat("combine them: ", inLanguage("abele::identityLoss(loss_a + loss_b, "
                                                            "abele::Reduction::kNone)"))});
  return {left.front()->tensor, left.front()->value};
}

}  // namespace abele::capture
