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
  std::vector<size_t> written;  // arguments that the kernel writes, where they are tensors
  std::vector<Part> parts;
  size_t optional = 0;        // of the last parts, how many may be left out
  bool gives_scalar = false;  // one result, f32[]
  bool is_joint = false;      // of several processes
};

const std::vector<Row>& rows() {
  using enum Part;
  static const std::vector<Row> table = {
      {"abele::copy", {0}, {kTensor, kSame}},
      {"abele::zero", {0}, {kTensor}},
      {"abele::emit", {0}, {kTensor, kSame}},
      {"abele::accumulate", {0}, {kTensor, kLike}},
      {"abele::add", {0}, {kTensor, kLike}},
      {"abele::add_previous", {0}, {kTensors}, 0, false, true},
      {"abele::share_sum", {0}, {kTensors}, 0, false, true},
      {"abele::sgd_", {0, 2, 5}, {kTensor, kLike, kLikeOrNone, kParameterGroup, kScalarOrNone, kScalarOrNone}, 2},
      {"abele::adam_", {0, 2, 3, 4}, {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kScalarOrNone}, 1},
      {"abele::adamw_", {0, 2, 3, 4}, {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kScalarOrNone}, 1},
      {"abele::rmsprop_",
       {0, 2, 3, 4},
       {kTensor, kLike, kLike, kLikeOrNone, kLikeOrNone, kParameterGroup, kFlag, kScalarOrNone},
       1},
      {"abele::lamb_", {0, 2, 3, 4}, {kTensor, kLike, kLike, kLike, kScalar, kParameterGroup, kFlag, kScalarOrNone}, 1},
      {"abele::clip_factor", {}, {kTensors, kReal, kFlag}, 1, true},
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
    for (size_t i : row->written)
      if (i < count && !isSaidToBeWritten(instruction_.args[i])) return cat("writes argument ", i);
    return areResultsGood(row->gives_scalar) ? "" : "results";
  }

 private:
  const Type& typeOf(int64_t slot) const { return exe_.slots[slot].type; }
  bool isTensor(const Arg& arg) const { return arg.kind == Arg::Kind::kId && arg.i >= 0; }
  bool isScalar(int64_t slot) const { return typeOf(slot).dtype == DType::kFloat32 && typeOf(slot).sizes.empty(); }
  bool isLikeFirst(const Arg& arg) const {
    return isTensor(arg) && typeOf(arg.i).sizes == typeOf(instruction_.args[0].i).sizes;
  }

  bool isSaidToBeWritten(const Arg& arg) const {
    const auto contains = [&](int64_t slot) {
      return slot < 0 ||
             std::find(instruction_.writes.begin(), instruction_.writes.end(), slot) != instruction_.writes.end();
    };
    if (arg.kind == Arg::Kind::kIdList) return std::all_of(arg.ints.begin(), arg.ints.end(), contains);
    return arg.kind != Arg::Kind::kId || contains(arg.i);
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
