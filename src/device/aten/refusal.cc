#include "device/aten/refusal.h"

#include "base/error.h"

namespace abele::device {
namespace {

std::string textOf(c10::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text += cat(text.empty() ? "" : ", ", size);
  return cat("[", text, "]");
}

}  // namespace

OtherShape::OtherShape(c10::IntArrayRef found_sizes, c10::IntArrayRef captured_sizes)
    : c10::Error(std::string("another shape than the one that was captured"), nullptr),
      found(textOf(found_sizes)),
      captured(textOf(captured_sizes)) {}

void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction, const c10::Error& error) {
  const std::string line = instruction.source < 0 ? "" : cat(executable.sources[instruction.source], ", ");
  if (const auto* shape = dynamic_cast<const OtherShape*>(&error))
    throwUser(ErrorCode::E0101,
              {.what = "an operator's result has another shape in this step than when it was captured",
               .at = cat(line, instruction.op),
               .found = shape->found,
               .expected = shape->captured,
               .remedy = cat("make a model for each shape, or destroy() this one and call it again; if it differs "
                             "from batch to batch, keep all elements and mask them (",
                             inLanguage("torch::where, multiplication by the mask)"))});
  throwUser(ErrorCode::E0601, {.what = error.what_without_backtrace(),
                               .at = cat(line, instruction.op),
                               .remedy = "check the values that this operation reads"});
}

}  // namespace abele::device
