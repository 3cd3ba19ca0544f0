// A Verification as text for people.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/cat.h"
#include "base/joined.h"
#include "verification/verify.h"

namespace abele::verification {
namespace {

constexpr std::pair<std::string_view, const char*> kWhatDiffers[] = {
    {kValue, "eager and compiled differ"},
    {kCapture, "eager differs from itself while it is captured"},
    {kConstant, "a constant of the program differs"},
    {kProgram, "the program differs from one micro-batch to the next"},
    {kGradient, "the sum of a parameter's gradients differs"},
    {kWeight, "a tensor of the model differs after the step"}};

std::string elementText(const Difference& difference) {
  return cat("[", joined(difference.element), "] of ", difference.type, "; ", difference.elements, " of ",
             difference.of, " differ");
}

}  // namespace

std::string textOf(const Verification& v) {
  const std::string counts = cat(v.batches, v.batches == 1 ? " batch" : " batches", ", ", v.micro_batches,
                                 v.micro_batches == 1 ? " micro-batch" : " micro-batches", ", ", v.values, " values");
  std::string text;
  if (!v.difference) {
    text = cat("equal, bit for bit: ", counts, "\n");
  } else {
    const Difference& d = *v.difference;
    const bool is_tensor = d.kind == kGradient || d.kind == kWeight;
    text = cat(std::ranges::find(kWhatDiffers, d.kind, &std::pair<std::string_view, const char*>::first)->second, " (",
               counts, ")\n");
    const auto line = [&](std::string_view name, const std::string& value) {
      if (!value.empty()) text += cat("  ", name, std::string(10 - name.size(), ' '), value, "\n");
    };
    line(is_tensor ? "tensor" : "operator",
         d.op.empty() ? "" : cat(d.op, ", ", d.direction == "weight-gradient" ? "backward" : d.direction));
    line("at", d.scope.empty() || d.line.empty() ? cat(d.scope, d.line) : cat(d.line, ", in ", d.scope));
    line("stage", d.stage < 0 ? "none" : cat(d.stage));
    line("batch", cat(d.batch, ", micro-batch ", d.micro_batch));
    if (d.of > 0) line("element", elementText(d));
    line("found", d.found);
    line("expected", d.expected);
    line("why", d.reason);
  }
  for (const std::string& note : v.notes) text += cat("  not compared: ", note, "\n");
  return text;
}

}  // namespace abele::verification
