// A Verification as text for people.
#include "base/cat.h"
#include "verification/verify.h"

namespace abele::verification {
namespace {

const char* directionText(ir::Direction direction) {
  switch (direction) {
    case ir::Direction::kForward: return "forward";
    case ir::Direction::kBackward:
    case ir::Direction::kWeightGrad: return "backward";
    case ir::Direction::kUpdate: return "update";
  }
  return "";
}

const char* whatDiffers(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::kValue: return "eager and compiled differ";
    case Difference::Kind::kCapture: return "eager differs from itself while it is captured";
    case Difference::Kind::kConstant: return "a constant of the program differs";
    case Difference::Kind::kProgram: return "the program differs from one micro-batch to the next";
    case Difference::Kind::kGradient: return "the sum of a parameter's gradients differs";
    case Difference::Kind::kWeight: return "a tensor of the model differs after the step";
  }
  return "";
}

std::string elementText(const Difference& difference) {
  std::string text = "[";
  for (size_t i = 0; i < difference.element.size(); ++i) text += cat(i ? ", " : "", difference.element[i]);
  return cat(text, "] of ", difference.type, "; ", difference.elements, " of ", difference.of, " differ");
}

}  // namespace

const char* kindName(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::kValue: return "value";
    case Difference::Kind::kCapture: return "capture";
    case Difference::Kind::kConstant: return "constant";
    case Difference::Kind::kProgram: return "program";
    case Difference::Kind::kGradient: return "gradient";
    case Difference::Kind::kWeight: return "weight";
  }
  return "";
}

std::string Verification::text() const {
  const std::string counts = cat(batches, batches == 1 ? " batch" : " batches", ", ", micro_batches,
                                 micro_batches == 1 ? " micro-batch" : " micro-batches", ", ", values, " values");
  std::string text;
  if (!difference) {
    text = cat("equal, bit for bit: ", counts, "\n");
  } else {
    const Difference& d = *difference;
    const bool is_tensor = d.kind == Difference::Kind::kGradient || d.kind == Difference::Kind::kWeight;
    text = cat(whatDiffers(d.kind), " (", counts, ")\n");
    const auto line = [&](std::string_view name, const std::string& value) {
      if (!value.empty()) text += cat("  ", name, std::string(10 - name.size(), ' '), value, "\n");
    };
    line(is_tensor ? "tensor" : "operator", d.op.empty() ? "" : cat(d.op, ", ", directionText(d.direction)));
    line("at", d.scope.empty() || d.line.empty() ? cat(d.scope, d.line) : cat(d.line, ", in ", d.scope));
    line("stage", d.stage < 0 ? "none" : cat(d.stage));
    line("batch", cat(d.batch, ", micro-batch ", d.micro_batch));
    if (d.of > 0) line("element", elementText(d));
    line("found", d.found);
    line("expected", d.expected);
    line("why", d.reason);
  }
  for (const std::string& note : notes) text += cat("  not compared: ", note, "\n");
  return text;
}

}  // namespace abele::verification
