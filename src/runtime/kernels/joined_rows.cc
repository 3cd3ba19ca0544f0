#include "runtime/kernels/joined_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/instructions.h"
#include "runtime/kernels/constants.h"
#include "runtime/kernels/known_trials.h"
#include "runtime/kernels/operator_lookup.h"

namespace abele::runtime {
namespace {

constexpr std::array kRowWise = {
#define ABELE_ROW_WISE(name) std::string_view(name),
#include "runtime/kernels/row_wise.def"
#undef ABELE_ROW_WISE
};

// Elements that one trial compares at least, as far as kMostRounds allows.
constexpr int64_t kElements = 65536;
constexpr int64_t kLeastRounds = 2, kMostRounds = 16;

// ATen's loops over elements handle what two vectors of any element type hold at once, and the rest one by one, where
// some functions have other bits; beyond so many elements, threads share them.
constexpr int64_t kTwoVectors = 128;
constexpr int64_t kGrain = 32768;

std::optional<c10::OperatorHandle> operatorOf(const std::string& name) {
  try {
    return findOperator(name);
  } catch (const std::exception&) {
    return std::nullopt;  // the parts say what is wrong with it
  }
}

bool isCopy(const exe::Instruction& instruction) {
  const OwnOp own = ownOp(instruction.op);
  return own == OwnOp::kCopy || own == OwnOp::kTransfer;
}

bool isPointwise(const exe::Instruction& instruction) {
  const auto op = operatorOf(instruction.op);
  return op && op->hasTag(at::Tag::pointwise);
}

int64_t shareOf(int64_t elements) {
  const int64_t threads = at::get_num_threads();
  if (elements < kGrain || threads == 1) return elements;
  const int64_t tasks = std::min(threads, (elements + kGrain - 1) / kGrain);
  return (elements + tasks - 1) / tasks;
}

// Every element of a lane stands at the same place of a vector loop in both ways.
bool loopsAlike(const Type& part, int64_t lanes) {
  const int64_t elements = part.numel(), row = part.sizes.empty() || part.sizes[0] == 0 ? 1 : elements / part.sizes[0];
  const auto isWhole = [&](int64_t count) {
    const int64_t share = shareOf(count);
    return share == count || (share % kTwoVectors == 0 && share % row == 0);
  };
  return elements % kTwoVectors == 0 && isWhole(elements) && isWhole(elements * lanes);
}

// Do the lanes have a dimension of their own, ahead of those of one? Else they are rows of its first.
bool hasLaneDimension(const Type& all, const Type& part) { return all.sizes.size() > part.sizes.size(); }

// Random contents of a slot, and those of the lanes in it.
class Operand {
 public:
  Operand(const Type& type, at::Generator& generator) : type_(type) {
    const auto dtype = static_cast<at::ScalarType>(type.dtype);
    const at::Tensor numbers = at::empty({type.extent()}, at::kFloat).normal_(0, 1, generator);
    memory_ = dtype == at::kBool ? numbers.gt(0) : numbers.to(dtype);
  }
  at::Tensor whole() const { return memory_.as_strided(type_.sizes, type_.strides); }
  at::Tensor lane(const Type& part, int64_t lane) const {
    const int64_t next = type_.strides[0] * (hasLaneDimension(type_, part) ? 1 : part.sizes[0]);
    return memory_.as_strided(part.sizes, part.strides, lane * next);
  }
  Operand copy() const {
    Operand other(*this);
    other.memory_ = memory_.clone();
    return other;
  }

 private:
  Type type_;
  at::Tensor memory_;
};

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

template <class Fn>
void forEachSlot(const exe::Instruction& joint, const exe::Instruction& part, Fn&& fn) {
  for (std::size_t a = 0; a < joint.args.size(); ++a) {
    const Arg &of_joint = joint.args[a], &of_part = part.args[a];
    if (of_joint.kind == Arg::Kind::kId && of_joint.i >= 0) fn(of_joint.i, of_part.i);
    if (of_joint.kind == Arg::Kind::kIdList || of_joint.kind == Arg::Kind::kOptionalIdList)
      for (std::size_t e = 0; e < of_joint.ints.size(); ++e)
        if (of_joint.ints[e] >= 0) fn(of_joint.ints[e], of_part.ints[e]);
  }
}

class Trial {
 public:
  Trial(const JoinedCall& call, const c10::OperatorHandle& op) : call_(call), op_(op) {}

  bool run() {
    at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/20261124);
    int64_t compared = 0;
    for (int64_t round = 0; round < (compared < kFewTrialElements ? kMostTrialRounds : kMostRounds); ++round) {
      if (!runOnce(generator, compared)) return false;
      if (compared == 0) return false;
      if (round + 1 >= kLeastRounds && compared >= kElements) break;
    }
    return true;
  }

 private:
  const Type& typeOf(int64_t slot) const { return call_.slots[static_cast<std::size_t>(slot)].type; }

  bool runOnce(at::Generator& generator, int64_t& compared) {
    operands_.clear();
    forEachSlot(call_.joint, call_.part, [&](int64_t joint, int64_t part) {
      if (!operands_.contains(joint)) operands_.emplace(joint, Made{Operand(typeOf(joint), generator), part});
    });
    std::map<int64_t, Made> of_joint = operands_;  // what is written is written twice
    for (const int32_t slot : call_.joint.writes) of_joint.at(slot).operand = operands_.at(slot).operand.copy();
    const torch::jit::Stack joined = callOn(call_.joint, of_joint, -1);
    for (int64_t lane = 0; lane < call_.lanes; ++lane) {
      const torch::jit::Stack parts = callOn(call_.part, operands_, lane);
      if (!sameResults(joined, parts, lane, compared)) return false;
      for (const int32_t slot : call_.joint.writes) {
        const Made &made = of_joint.at(slot), &expected = operands_.at(slot);
        const at::Tensor found = tensorOf(made, slot, lane);
        if (!sameBits(found, tensorOf(expected, slot, lane))) return false;
        compared += found.numel();
      }
    }
    return true;
  }

  struct Made {
    Operand operand;
    int64_t part = -1;  // slot of the first lane
  };

  at::Tensor tensorOf(const Made& made, int64_t slot, int64_t lane) const {
    if (lane < 0 || made.part == slot) return made.operand.whole();
    return made.operand.lane(typeOf(made.part), lane);
  }

  // instruction: whose constants. lane: -1 for all at once.
  torch::jit::Stack callOn(const exe::Instruction& instruction, const std::map<int64_t, Made>& operands,
                           int64_t lane) const {
    const auto tensor = [&](int64_t slot) { return slot < 0 ? at::Tensor() : tensorOf(operands.at(slot), slot, lane); };
    torch::jit::Stack stack;
    const auto& parameters = op_.schema().arguments();
    for (std::size_t a = 0; a < call_.joint.args.size(); ++a) {
      const Arg& arg = call_.joint.args[a];
      if (arg.kind == Arg::Kind::kId) {
        const bool is_plain = parameters[a].type()->kind() == c10::TypeKind::TensorType;
        stack.push_back(arg.i >= 0 || is_plain ? c10::IValue(tensor(arg.i)) : c10::IValue());
      } else if (arg.kind == Arg::Kind::kIdList) {
        c10::List<at::Tensor> list;
        for (const int64_t id : arg.ints) list.push_back(tensor(id));
        stack.emplace_back(std::move(list));
      } else {
        stack.push_back(constantValue(instruction.args[a], parameters[a]));
      }
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  }

  bool sameResults(const torch::jit::Stack& joined, const torch::jit::Stack& parts, int64_t lane,
                   int64_t& compared) const {
    for (std::size_t r = 0; r < call_.joint.results.size(); ++r) {
      const int32_t slot = call_.joint.results[r].empty() ? -1 : call_.joint.results[r][0];
      if (slot < 0) continue;
      if (!joined[r].isTensor() || !parts[r].isTensor()) return false;
      const at::Tensor &all = joined[r].toTensor(), &one = parts[r].toTensor();
      if (!all.defined() || !one.defined() || all.sizes() != at::IntArrayRef(typeOf(slot).sizes)) return false;
      const bool has_dimension = all.dim() > one.dim();
      if (!sameBits(has_dimension ? all.select(0, lane) : all.narrow(0, lane * one.size(0), one.size(0)), one))
        return false;
      compared += one.numel();
    }
    return true;
  }

  const JoinedCall& call_;
  const c10::OperatorHandle op_;
  std::map<int64_t, Made> operands_;  // by slot of the joint instruction
};

// Argument kinds that a trial can make up; no lists of results.
bool isPlain(const exe::Instruction& joint) {
  const bool has_plain_arguments = std::all_of(joint.args.begin(), joint.args.end(), [](const Arg& arg) {
    return arg.kind != Arg::Kind::kGenerator && arg.kind != Arg::Kind::kOptionalIdList;
  });
  return has_plain_arguments && std::all_of(joint.results.begin(), joint.results.end(),
                                            [](const auto& results) { return results.size() <= 1; });
}

std::string keyOf(const JoinedCall& call) {
  std::string key = cat(call.joint.op, " ", call.lanes, " ", at::get_num_threads());
  for (const exe::Instruction* instruction : {&call.joint, &call.part})
    for (const Arg& arg : instruction->args)
      if (!arg.holdsIds()) key += cat(" ", text::argText(arg, '$'));
  const auto add = [&](int64_t slot) { key += cat(" ", call.slots[static_cast<std::size_t>(slot)].type.str()); };
  forEachSlot(call.joint, call.part, [&](int64_t joint, int64_t part) {
    add(joint);
    add(part);
  });
  for (const Arg& arg : call.joint.args)
    if (arg.holdsIds()) key += cat(" ", arg.kind == Arg::Kind::kId ? arg.i >= 0 : arg.ints.size() > 0);
  for (const auto& results : call.joint.results)
    for (const int32_t slot : results) slot < 0 ? void(key += " none") : add(slot);
  return cat(key, " writes ", call.joint.writes.size());
}

bool tryBoth(const JoinedCall& call) {
  const auto op = operatorOf(call.joint.op);
  if (!op) return false;
  try {
    return Trial(call, *op).run();
  } catch (const std::exception&) {
    return false;  // ATen refuses these operands over all lanes
  }
}

}  // namespace

bool mayJoinRows(const exe::Instruction& joint) {
  if (isCopy(joint)) return true;
  return isPlain(joint) &&
         (std::find(kRowWise.begin(), kRowWise.end(), joint.op) != kRowWise.end() || isPointwise(joint));
}

bool joinsRows(const JoinedCall& call) {
  if (isCopy(call.joint)) return true;  // moves bits
  if (isPointwise(call.joint)) {
    const int64_t written = !call.part.writes.empty() ? call.part.writes[0] : call.part.results.at(0).at(0);
    if (written < 0 || !loopsAlike(call.slots[static_cast<std::size_t>(written)].type, call.lanes)) return false;
  }
  static auto& known = *new KnownTrials<std::string, bool>;
  return known.of(keyOf(call), [&] { return tryBoth(call); });
}

}  // namespace abele::runtime
