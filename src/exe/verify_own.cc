// Kernels of our own take what is written here without looking: a file must not be able to give them anything else.
#include <algorithm>

#include "base/cat.h"
#include "exe/verify_parts.h"

namespace abele::exe {
namespace {

constexpr int64_t kMaxParameterGroups = int64_t{1} << 20;

enum class Part : uint8_t {
  kTensor,          // any sizes
  kLike,            // the sizes of the first argument
  kSame,            // and its element type
  kLikeOrNone,      // the same, or no tensor
  kTensors,         // a list of tensors
  kScalar,          // f32[]
  kScalarOrNone,    // the same, or no tensor
  kParameterGroup,  // a number
  kReal,
  kFlag,
};

struct Row {
  const char* op;
  std::vector<Part> parts;
  size_t optional = 0;        // of the last parts, how many may be left out
  bool gives_scalar = false;  // one result, f32[]
  bool is_joint = false;      // of several processes
};

const std::vector<Row>& rows() {
  using enum Part;
  static const std::vector<Row> table = {
      {"abele::copy", {kTensor, kSame}},
      {"abele::zero", {kTensor}},
      {"abele::emit", {kTensor, kSame}},
      {"abele::accumulate", {kTensor, kLike}},
      {"abele::add", {kTensor, kLike}},
      {"abele::add_previous", {kTensors}, 0, false, true},
      {"abele::share_sum", {kTensors}, 0, false, true},
      {"abele::sgd_", {kTensor, kLike, kLikeOrNone, kParameterGroup, kScalarOrNone, kScalarOrNone}, 2},
      {"abele::adam_", {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kScalarOrNone}, 1},
      {"abele::adamw_", {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kScalarOrNone}, 1},
      {"abele::rmsprop_", {kTensor, kLike, kLike, kLikeOrNone, kLikeOrNone, kParameterGroup, kFlag, kScalarOrNone}, 1},
      {"abele::lamb_", {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kFlag, kScalarOrNone}, 1},
      {"abele::clip_factor", {kTensors, kReal, kFlag}, 1, true},
  };
  return table;
}

class OwnVerifier {
 public:
  OwnVerifier(const Executable& exe, const Instruction& instruction) : exe_(exe), instruction_(instruction) {}

  /// What is wrong; empty: nothing.
  std::string finding() const {
    const auto row = std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return instruction_.op == r.op; });
    if (row == rows().end()) return "no such operator";
    if (row->is_joint && exe_.processes == 1) return "an operator of several processes in a program of one";
    const size_t count = instruction_.args.size();
    if (count > row->parts.size() || count + row->optional < row->parts.size()) return cat(count, " arguments");
    for (size_t i = 0; i < count; ++i)
      if (!isGood(instruction_.args[i], row->parts[i])) return cat("argument ", i);
    return areResultsGood(row->gives_scalar) ? "" : "results";
  }

 private:
  const Type& typeOf(int64_t slot) const { return exe_.slots[slot].type; }
  bool isTensor(const Arg& arg) const { return arg.kind == Arg::Kind::kId && arg.i >= 0; }
  bool isScalar(int64_t slot) const { return typeOf(slot).dtype == DType::kFloat32 && typeOf(slot).sizes.empty(); }
  bool isLikeFirst(const Arg& arg) const {
    return isTensor(arg) && typeOf(arg.i).sizes == typeOf(instruction_.args[0].i).sizes;
  }

  bool isGood(const Arg& arg, Part part) const {
    switch (part) {
      case Part::kTensor: return isTensor(arg);
      case Part::kLike: return isLikeFirst(arg);
      case Part::kSame: return isLikeFirst(arg) && typeOf(arg.i).dtype == typeOf(instruction_.args[0].i).dtype;
      case Part::kLikeOrNone:
        return arg.kind == Arg::Kind::kNone || (arg.kind == Arg::Kind::kId && arg.i < 0) || isLikeFirst(arg);
      case Part::kTensors:
        return arg.kind == Arg::Kind::kIdList &&
               std::all_of(arg.ints.begin(), arg.ints.end(), [](int64_t slot) { return slot >= 0; });
      case Part::kScalarOrNone:
        if (arg.kind == Arg::Kind::kNone) return true;
        [[fallthrough]];
      case Part::kScalar: return isTensor(arg) && isScalar(arg.i);
      case Part::kParameterGroup: return arg.kind == Arg::Kind::kInt && arg.i >= 0 && arg.i < kMaxParameterGroups;
      case Part::kReal: return arg.kind == Arg::Kind::kDouble;
      case Part::kFlag: return arg.kind == Arg::Kind::kBool;
    }
    return false;
  }

  bool areResultsGood(bool gives_scalar) const {
    if (!gives_scalar)
      return !instruction_.writes.empty() &&
             std::all_of(instruction_.results.begin(), instruction_.results.end(), [](const auto& slots) {
               return std::all_of(slots.begin(), slots.end(), [](int32_t slot) { return slot < 0; });
             });
    return instruction_.results.size() == 1 && instruction_.results[0].size() == 1 && instruction_.results[0][0] >= 0 &&
           isScalar(instruction_.results[0][0]);
  }

  const Executable& exe_;
  const Instruction& instruction_;
};

}  // namespace

void checkOwnInstructions(const Executable& executable, std::vector<std::string>& findings) {
  for (const Segment& segment : executable.segments)
    for (const Instruction& instruction : segment.instructions) {
      if (!instruction.op.starts_with("abele::")) continue;
      const std::string finding = OwnVerifier(executable, instruction).finding();
      if (!finding.empty()) findings.push_back(cat(segment.name, " ", instruction.op, ": ", finding));
    }
}

}  // namespace abele::exe
