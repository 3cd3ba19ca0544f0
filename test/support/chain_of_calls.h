// A pipeline of small calls that read one weight.
#pragma once

#include "base/cat.h"
#include "ir/text.h"

namespace abele::test {

constexpr int kCallsOfStage = 100;

/// A prediction; each stage is on a device of its own. rows: of a micro-batch.
inline ir::Graph chainOfCalls(int stages, int rows) {
  std::string text = "\ngraph @main {\n";
  for (int s = 0; s < stages; ++s) text += cat("  stage ", s, " \"s", s, "\" {device=", s, "}\n");
  text += cat("  external 0 parameter \"w\": f32[64,64]\n  input %0 \"x\": f32[", rows,
              ",64] = argument(0)\n  input %1 \"w\": f32[64,64] = parameter(0)\n");
  int value = 2;
  for (int i = 0; i < kCallsOfStage * stages; ++i, ++value)
    text += cat("  %", value, ": f32[", rows, ",64] = aten.f(%", i == 0 ? 0 : value - 1,
                ", %1) {stage=", i / kCallsOfStage, "}\n");
  return ir::parse(cat(text, "  output result(0) %", value - 1, "\n}\n"));
}

}  // namespace abele::test
