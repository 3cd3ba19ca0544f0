// Our own kernels do not check their arguments, so these checks must refuse every argument that a kernel cannot take.
#include <algorithm>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/instructions.h"
#include "exe/verify_parts.h"

namespace abele::exe {
namespace {

constexpr int64_t kMaxParameterGroups = int64_t{1} << 20;

class OwnVerifier {
 public:
  OwnVerifier(const Executable& exe, const Instruction& instruction) : exe_(exe), instruction_(instruction) {}

  /// The mistake, or empty.
  std::string finding() const {
    const OwnOpRow* row = ownOpRow(instruction_.op);
    if (!row) return "no such operator";
    if ((row->traits & kJoint) != 0 && exe_.processes == 1)
      return "an operator for several processes in a program for one";
    if ((row->traits & kMessage) != 0 && exe_.stage_processes == 1)
      return "a message to another process in a program for one";
    const std::vector<Operand>& operands = row->operands;
    const size_t count = instruction_.args.size();
    const auto least = static_cast<size_t>(std::ranges::count(operands, false, &Operand::may_lack));
    if (count > operands.size() || count < least)
      return cat(count, count == 1 ? " argument" : " arguments", ", expected ",
                 least < operands.size() ? cat(least, " to ") : "", operands.size());
    for (size_t i = 0; i < count; ++i)
      if (const std::string expected = lacking(instruction_.args[i], operands[i].kind); !expected.empty())
        return cat("argument ", i, " (", operands[i].name, ") is ", foundText(instruction_.args[i]), ", expected ",
                   expected);
    for (size_t i = 0; i < count; ++i)
      if (operands[i].is_written && !isSaidToBeWritten(instruction_.args[i]))
        return cat("argument ", i, " (", operands[i].name, ") is ", foundText(instruction_.args[i]),
                   ", expected it in writes()");
    if ((row->traits & kMessage) != 0 &&
        (instruction_.args[1].i >= exe_.stage_processes || instruction_.args[0].ints.empty()))
      return "no values, or no such process";
    if (const std::string wrong = wrongSum(row->op); !wrong.empty()) return wrong;
    const bool writes = std::ranges::any_of(operands, [](const Operand& o) { return o.is_written; });
    return wrongResults((row->traits & kGivesScalar) != 0, writes);
  }

 private:
  std::string foundText(const Arg& arg) const {
    return isTensor(arg) ? cat("$", arg.i, " ", typeOf(arg.i).str()) : text::argText(arg, '$');
  }
  // Checks what the kernels of kAccumulateProduct and kAccumulateRows rely on.
  std::string wrongSum(OwnOp op) const {
    if (op != OwnOp::kAccumulateProduct && op != OwnOp::kAccumulateRows) return "";
    const std::vector<Arg>& args = instruction_.args;
    const Type &sum = typeOf(args[0].i), &first = typeOf(args[1].i), &second = typeOf(args[2].i);
    if (op == OwnOp::kAccumulateProduct) {
      const bool fits =
          first.sizes[0] == sum.sizes[0] && second.sizes[1] == sum.sizes[1] && first.sizes[1] == second.sizes[0];
      return fits && first.dtype == sum.dtype && second.dtype == sum.dtype ? "" : "not a product of its sum's type";
    }
    const bool has_indices = second.dtype == DType::kInt64 || second.dtype == DType::kInt32;
    const int64_t width = sum.sizes[1];
    const bool is_as_long = width == 0 || (first.numel() % width == 0 && first.numel() / width == second.numel());
    const bool has_rows = sum.dtype == DType::kFloat32 && first.dtype == DType::kFloat32 && !first.sizes.empty() &&
                          first.sizes.back() == width && is_as_long;
    const auto isDense = [](const Type& type) { return type == contiguousType(type.dtype, type.sizes); };
    return has_indices && has_rows && isDense(sum) && isDense(first) && isDense(second) ? ""
                                                                                        : "not rows of its sum's type";
  }

  const Type& typeOf(int64_t slot) const { return exe_.slots[slot].type; }
  bool isTensor(const Arg& arg) const { return arg.kind == Arg::Kind::kId && arg.i >= 0; }
  bool isScalar(int64_t slot) const { return typeOf(slot).dtype == DType::kFloat32 && typeOf(slot).sizes.empty(); }
  bool isScalar(const Arg& arg) const { return isTensor(arg) && isScalar(arg.i); }
  bool isLikeFirst(const Arg& arg) const {
    return isTensor(arg) && typeOf(arg.i).sizes == typeOf(instruction_.args[0].i).sizes;
  }

  bool isSaidToBeWritten(const Arg& arg) const {
    const auto contains = [&](int64_t slot) {
      return slot < 0 || std::ranges::find(instruction_.writes, slot) != instruction_.writes.end();
    };
    if (arg.kind == Arg::Kind::kIdList) return std::ranges::all_of(arg.ints, contains);
    return arg.kind != Arg::Kind::kId || contains(arg.i);
  }
  // The text that the kind expects; empty if the argument fits.
  std::string lacking(const Arg& arg, OperandKind kind) const {
    using Kind = Arg::Kind;
    const auto unless = [](bool is_good, const char* expected) { return is_good ? "" : expected; };
    const auto like = [&](bool is_good, const char* expected) {
      return is_good ? std::string() : cat(expected, foundText(instruction_.args[0]));
    };
    const bool is_index = arg.kind == Kind::kInt && arg.i >= 0;
    const bool is_absent = arg.kind == Kind::kNone || (arg.kind == Kind::kId && arg.i < 0);
    switch (kind) {
      case OperandKind::kTensor: return unless(isTensor(arg), "a tensor");
      case OperandKind::kMatrix: return unless(isTensor(arg) && typeOf(arg.i).sizes.size() == 2, "a matrix");
      case OperandKind::kLike: return like(isLikeFirst(arg), "the sizes of ");
      case OperandKind::kSame:
        return like(isLikeFirst(arg) && typeOf(arg.i).dtype == typeOf(instruction_.args[0].i).dtype,
                    "the sizes and the element type of ");
      case OperandKind::kLikeOrNone: return like(is_absent || isLikeFirst(arg), "none, or the sizes of ");
      case OperandKind::kTensors:
        return unless(
            arg.kind == Kind::kIdList && std::ranges::all_of(arg.ints, [](int64_t slot) { return slot >= 0; }),
            "a list of tensors");
      case OperandKind::kScalarOrNone: return unless(arg.kind == Kind::kNone || isScalar(arg), "none or f32[]");
      case OperandKind::kScalar: return unless(isScalar(arg), "f32[]");
      case OperandKind::kParameterGroup:
        return unless(is_index && arg.i < kMaxParameterGroups, "the index of a parameter group");
      case OperandKind::kReal: return unless(arg.kind == Kind::kDouble, "a real number, such as 1.0");
      case OperandKind::kFlag: return unless(arg.kind == Kind::kBool, "true or false");
      case OperandKind::kIndex: return unless(is_index && arg.i <= INT32_MAX, "a whole number from 0 on");
      case OperandKind::kWhole: return unless(arg.kind == Kind::kInt, "a whole number");
    }
    return "another kind of operand";
  }

  std::string wrongResults(bool gives_scalar, bool writes) const {
    const std::vector<std::vector<int32_t>>& results = instruction_.results;
    if (gives_scalar) {
      const bool is_one = results.size() == 1 && results[0].size() == 1 && results[0][0] >= 0;
      if (!is_one) return "results, expected one";
      return isScalar(results[0][0]) ? "" : cat("result is ", typeOf(results[0][0]).str(), ", expected f32[]");
    }
    for (const auto& slots : results)
      if (std::ranges::any_of(slots, [](int32_t slot) { return slot >= 0; })) return "results, expected none";
    if (instruction_.writes.empty() == !writes) return "";
    return writes ? "writes nothing" : "writes, expected nothing";
  }

  const Executable& exe_;
  const Instruction& instruction_;
};

}  // namespace

void checkOwnInstructions(const Executable& executable, std::vector<std::string>& findings) {
  for (const Segment& segment : executable.segments)
    for (const Instruction& instruction : segment.instructions) {
      if (!isOwn(instruction.op)) continue;
      const std::string finding = OwnVerifier(executable, instruction).finding();
      if (!finding.empty()) findings.push_back(cat(segment.name, " ", instruction.op, ": ", finding));
    }
}

}  // namespace abele::exe
