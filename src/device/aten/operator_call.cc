#include "device/aten/operator_call.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <c10/core/TensorOptions.h>

#include "base/error.h"
#include "base/own_generator.h"
#include "device/aten/operator_signature.h"
#include "device/aten/product_call.h"
#include "device/aten/refusal.h"
#include "exe/instruction_slots.h"
#include "kernels/basic.h"
#include "kernels/bernoulli.h"
#include "kernels/constants.h"
#include "kernels/operator_lookup.h"
#include "memory/steering_allocator.h"

namespace abele::device {
namespace {

c10::DispatchKey keyOf(const SlotTable& slots) {
  return c10::computeDispatchKey(at::kFloat, at::kStrided, slots.device());
}

bool sameGeometry(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Copies a result. Elements of an expanded tensor share memory, which copy_ refuses to write.
void moveInto(const at::Tensor& to, const at::Tensor& from) {
  if (sameGeometry(to, from) && at::has_internal_overlap(to) == at::MemOverlap::Yes) {
    int64_t extent = 1;
    for (int64_t d = 0; d < to.dim(); ++d) extent += (to.size(d) - 1) * to.stride(d);
    to.as_strided({extent}, {1}).copy_(from.as_strided({extent}, {1}));
    return;
  }
  to.copy_(from);
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const char* a_begin = static_cast<const char*>(a.const_data_ptr());
  const char* b_begin = static_cast<const char*>(b.const_data_ptr());
  const auto bytes = [](const at::Tensor& t) {
    return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
  };
  return a_begin < b_begin + bytes(b) && b_begin < a_begin + bytes(a);
}

// An operand that is pushed on the stack at one position of a call.
struct Operand {
  enum class Kind : uint8_t { kConstant, kTensor, kTensorList, kOptionalTensorList, kGenerator };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  SlotRef tensor;
  std::vector<SlotRef> list;
};

// A result that has a slot.
struct Result {
  std::size_t index = 0;
  int32_t element = -1;  // index in a Tensor[]
  SlotRef slot;
  bool is_of_several = false;  // used by several workers; set on accelerators
};

// At every call, these operators of ATen turn a wrapped number into a tensor of the common type. For float the
// conversion is all that happens to the number, so it is done once, here.
bool takesNumberAsFloat(const exe::Instruction& instruction, const SlotTable& slots) {
  static const std::unordered_set<std::string> operators = {
      "aten::add.Tensor",  "aten::sub.Tensor",  "aten::mul.Tensor",  "aten::div.Tensor",
      "aten::add_.Tensor", "aten::sub_.Tensor", "aten::mul_.Tensor", "aten::div_.Tensor"};
  const Arg& self = instruction.args[0];
  return operators.contains(instruction.op) && self.kind == Arg::Kind::kId && self.i >= 0 &&
         slots.typeOf(static_cast<int32_t>(self.i)).dtype == DType::kFloat32;
}

// An executable names the device that its capture ran on, but means any device of the kind; and a stage may be on the
// host.
c10::Device deviceNamed(c10::Device name, const SlotTable& slots) {
  const bool stays = slots.device().is_cpu() && (name.is_cpu() || name.is_meta());
  return stays ? name : slots.device();
}

Operand makeOperand(const exe::Instruction& instruction, std::size_t index, const c10::Argument& parameter,
                    const SlotTable& slots) {
  using Kind = Operand::Kind;
  const Arg& arg = instruction.args[index];
  const auto listOf = [&](Kind kind) {
    Operand operand{kind, {}, {}, {}};
    for (const int64_t id : arg.ints) operand.list.push_back(slots.ref(static_cast<int32_t>(id)));
    return operand;
  };
  switch (arg.kind) {
    case Arg::Kind::kId:
      if (arg.i >= 0) return {Kind::kTensor, {}, slots.ref(static_cast<int32_t>(arg.i)), {}};
      return {Kind::kConstant,
              parameter.type()->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue(),
              {},
              {}};
    case Arg::Kind::kIdList: return listOf(Kind::kTensorList);
    case Arg::Kind::kOptionalIdList: return listOf(Kind::kOptionalTensorList);
    case Arg::Kind::kGenerator: return {Kind::kGenerator, {}, {}, {}};
    case Arg::Kind::kNumber: {
      at::Tensor number = kernels::constantValue(arg, parameter).toTensor();
      if (takesNumberAsFloat(instruction, slots) && !number.is_complex()) {
        number = number.to(at::kFloat);
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return {Kind::kConstant, number, {}, {}};
    }
    case Arg::Kind::kDevice:
      return {Kind::kConstant, deviceNamed(kernels::constantValue(arg, parameter).toDevice(), slots), {}, {}};
    default: return {Kind::kConstant, kernels::constantValue(arg, parameter), {}, {}};
  }
}

c10::IValue listValue(const Operand& operand, const int32_t* frame_of_group) {
  if (operand.kind == Operand::Kind::kOptionalTensorList) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(operand.list.size());
    for (const SlotRef& slot : operand.list)
      list.push_back(slot.frames ? std::optional<at::Tensor>(slot.at(frame_of_group)) : std::nullopt);
    return list;
  }
  c10::List<at::Tensor> list;
  list.reserve(operand.list.size());
  for (const SlotRef& slot : operand.list) list.push_back(slot.frames ? slot.at(frame_of_group) : at::Tensor());
  return list;
}

at::Tensor resultOf(const Result& result, const torch::jit::Stack& stack) {
  const c10::IValue& value = stack[result.index];
  if (result.element < 0) return value.isNone() ? at::Tensor() : value.toTensor();
  return value.toTensorList().get(static_cast<std::size_t>(result.element));
}

// Pushes the operands and calls.
class OperatorCall : public Call {
 public:
  OperatorCall(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots)
      : op_(op),
        keys_(keyOf(slots)),
        draws_{.random_draws = instruction.random_draws,
               .random_offset = instruction.random_offset,
               .normals = instruction.normals,
               .draws_vary = instruction.draws_vary},
        own_(ownGenerator(instruction.args)) {
    const auto& parameters = op.schema().arguments();
    ABELE_CHECK(instruction.args.size() <= parameters.size(), instruction.op, " has ", instruction.args.size(),
                " arguments");
    bool draws = false;
    for (std::size_t i = 0; i < instruction.args.size(); ++i) {
      operands_.push_back(makeOperand(instruction, i, parameters[i], slots));
      draws = draws || operands_.back().kind == Operand::Kind::kGenerator;
    }
    ABELE_CHECK(draws || draws_.random_draws < 0 || !slots.device().is_cpu(), instruction.op,
                " draws random numbers without a generator");
  }

 protected:
  void pushOperands(CallState& state) const {
    torch::jit::Stack& stack = state.stack;
    stack.clear();
    for (const Operand& operand : operands_) {
      switch (operand.kind) {
        case Operand::Kind::kConstant: stack.push_back(operand.constant); break;
        case Operand::Kind::kTensor: stack.emplace_back(operand.tensor.at(state.frame_of_group)); break;
        case Operand::Kind::kTensorList:
        case Operand::Kind::kOptionalTensorList: stack.push_back(listValue(operand, state.frame_of_group)); break;
        case Operand::Kind::kGenerator: stack.emplace_back(generator(state)); break;
      }
    }
  }
  void call(CallState& state) const { op_.redispatchBoxed(keys_, &state.stack); }

  c10::OperatorHandle op_;
  c10::DispatchKeySet keys_;

 private:
  std::vector<Operand> operands_;
  const at::Generator& generator(const CallState& state) const {
    if (own_ > 0) {
      const OwnDraws& own = state.own[own_ - 1];
      const RandomPlace place = CallState::placeOf(draws_, own.draws_base, own.normals_base);
      return draws_.isRandom() ? own.random->draw(place) : own.random->generator();
    }
    return draws_.isRandom() ? state.random->draw(state.placeOf(draws_)) : state.random->generator();
  }

  exe::Instruction draws_;  // only the fields that describe its draws
  int64_t own_;             // as in ownGenerator
};

// For operators that only write in place, or whose results are not used.
class InPlaceCall final : public OperatorCall {
 public:
  using OperatorCall::OperatorCall;
  void run(CallState& state) override {
    pushOperands(state);
    call(state);
  }
};

// bernoulli_ with a number, on the CPU.
class BernoulliCall final : public OperatorCall {
 public:
  using OperatorCall::OperatorCall;
  void run(CallState& state) override {
    pushOperands(state);
    kernels::drawBernoulli(state.stack[0].toTensor(), state.stack[1].toDouble(), state.stack[2].toGenerator());
  }
};

bool isAsPlanned(const at::Tensor& tensor, const Type& type) {
  return tensor.sizes() == c10::IntArrayRef(type.sizes) && tensor.strides() == c10::IntArrayRef(type.strides);
}

// The most frequent operators of two tensors, or of a tensor and a number, with a slot as result. It calls the CPU's
// kernel without the stack and the dispatcher, which take as long as an addition of few elements.
class BinaryCall final : public Call {
 public:
  /// Null for another operator or another device.
  static std::unique_ptr<Call> make(const exe::Instruction& instruction, const c10::OperatorHandle& op,
                                    const SlotTable& slots, const Result& result) {
    const auto kernel = kernels().find(instruction.op);
    const std::size_t count = instruction.args.size();
    if (kernel == kernels().end() || !slots.device().is_cpu() || count < 2 || count > 3) return nullptr;
    const auto& parameters = op.schema().arguments();
    Operand a = makeOperand(instruction, 0, parameters[0], slots),
            b = makeOperand(instruction, 1, parameters[1], slots);
    const bool has_number =
        b.kind == Operand::Kind::kConstant && b.constant.isTensor() && b.constant.toTensor().defined();
    if (a.kind != Operand::Kind::kTensor || (b.kind != Operand::Kind::kTensor && !has_number)) return nullptr;
    auto call = std::make_unique<BinaryCall>();
    call->kernel_ = kernel->second;
    call->a_ = a.tensor;
    if (has_number)
      call->number_ = b.constant.toTensor();
    else
      call->b_ = b.tensor;
    if (count == 3) call->alpha_ = makeOperand(instruction, 2, parameters[2], slots).constant.toScalar();
    call->out_ = result.slot;
    call->type_ = &slots.typeOf(instruction.results[result.index][0]);
    return call;
  }

  void run(CallState& state) override {
    const int32_t* frames = state.frame_of_group;
    at::Tensor out = out_.at(frames);
    kernel_(out, a_.at(frames), b_.frames ? b_.at(frames) : number_, alpha_);
    if (is_checked_) return;
    ABELE_CHECK(isAsPlanned(out, *type_), "planned ", type_->str());
    is_checked_ = true;
  }

 private:
  using Kernel = void (*)(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha);
  static const std::unordered_map<std::string, Kernel>& kernels() {
    static const std::unordered_map<std::string, Kernel> table = {
        {"aten::add.Tensor", [](auto& out, auto& a, auto& b, auto& alpha) { at::cpu::add_out(out, a, b, alpha); }},
        {"aten::sub.Tensor", [](auto& out, auto& a, auto& b, auto& alpha) { at::cpu::sub_out(out, a, b, alpha); }},
        {"aten::mul.Tensor", [](auto& out, auto& a, auto& b, auto&) { at::cpu::mul_out(out, a, b); }},
        {"aten::div.Tensor", [](auto& out, auto& a, auto& b, auto&) { at::cpu::div_out(out, a, b); }}};
    return table;
  }

  Kernel kernel_ = nullptr;
  SlotRef a_, b_, out_;
  at::Tensor number_;
  at::Scalar alpha_ = 1;
  const Type* type_ = nullptr;
  bool is_checked_ = false;
};

// For operators whose results go directly into their slots.
class OutCall final : public OperatorCall {
 public:
  OutCall(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots,
          const std::vector<Result>& results)
      : OperatorCall(instruction, op, slots) {
    for (const Result& result : results)
      outs_.push_back({result.slot, &slots.typeOf(instruction.results[result.index][0])});
  }
  void run(CallState& state) override {
    pushOperands(state);
    for (const Out& out : outs_) state.stack.emplace_back(out.slot.at(state.frame_of_group));
    call(state);
    if (!is_checked_) check(state.frame_of_group);
  }

 private:
  struct Out {
    SlotRef slot;
    const Type* type;
  };
  // An operator that computes other sizes than planned would resize its result. Checking the first call is enough,
  // because all calls have the same sizes.
  void check(const int32_t* frame_of_group) {
    for (const Out& out : outs_)
      ABELE_CHECK(isAsPlanned(out.slot.at(frame_of_group), *out.type), op_.schema().name(), " planned ",
                  out.type->str());
    is_checked_ = true;
  }
  std::vector<Out> outs_;
  bool is_checked_ = false;
};

// Whether the operator only copies into a new tensor.
bool isCopy(const exe::Instruction& instruction) {
  const Arg& from = instruction.args.empty() ? Arg() : instruction.args[0];  // a plain number has no slot
  return (instruction.op == "aten::clone" || instruction.op == "aten::_to_copy") && from.kind == Arg::Kind::kId &&
         from.i >= 0;
}

// The functional operator. Its second run records which of its allocations become results; the first run may allocate
// more, to fill caches of ATen. Later runs use the slots' addresses for these allocations.
class SteeredCall final : public OperatorCall {
 public:
  SteeredCall(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots,
              std::vector<Result> results)
      : OperatorCall(instruction, op, slots),
        results_(std::move(results)),
        is_steered_(slots.device().is_cpu() && !op.hasTag(at::Tag::dynamic_output_shape)) {}

  void run(CallState& state) override {
    pushOperands(state);
    if (!is_steered_) {
      call(state);
    } else if (runs_ > 1) {
      for (std::size_t i = 0; i < steers_.size(); ++i)
        steers_[i].address = results_[steered_[i]].slot.at(state.frame_of_group).mutable_data_ptr();
      const memory::SteerScope scope(steers_);
      call(state);
    } else if (runs_ == 0) {
      call(state);
    } else {
      std::vector<memory::Allocation> trace;
      {
        const memory::TraceScope scope(trace);
        call(state);
      }
      learn(trace, state);
    }
    moveResultsToSlots(state);
    state.stack.clear();
    ++runs_;
  }

 private:
  void learn(const std::vector<memory::Allocation>& trace, const CallState& state) {
    for (std::size_t ordinal = 0; ordinal < trace.size(); ++ordinal) {
      for (std::size_t i = 0; i < results_.size(); ++i) {
        const at::Tensor tensor = resultOf(results_[i], state.stack);
        if (!tensor.defined() || tensor.const_data_ptr() != trace[ordinal].address) continue;
        const at::Tensor& slot = results_[i].slot.at(state.frame_of_group);
        if (trace[ordinal].bytes > slot.storage().nbytes()) continue;
        steers_.push_back({static_cast<int32_t>(ordinal), trace[ordinal].bytes, nullptr});
        steered_.push_back(i);
        break;
      }
    }
  }

  // A kernel of an accelerator leaves some results on the host, where their readers expect them. One such result is the
  // random position where attention's backward begins.
  void leaveOnHost(const Result& result, const CallState& state) const {
    ABELE_REQUIRE(
        !result.is_of_several, E0711,
        {.what = cat(op_.schema().name(), " puts a result into the host's memory, and another device reads it"),
         .expected = "results in the memory of the device, or results that only one device reads",
         .remedy = "put the operators that read it into the same block"});
    const at::Tensor& slot = result.slot.at(state.frame_of_group);
    result.slot.replace(state.frame_of_group,
                        at::empty_strided(slot.sizes(), slot.strides(), slot.options().device(at::kCPU)));
  }

  // Moves results that are not in their slots yet into them.
  void moveResultsToSlots(CallState& state) const {
    std::vector<std::pair<const at::Tensor*, at::Tensor>> moves;
    for (const Result& result : results_) {
      const at::Tensor& slot = result.slot.at(state.frame_of_group);
      const at::Tensor tensor = resultOf(result, state.stack);
      ABELE_CHECK(tensor.defined(), op_.schema().name(), " result ", result.index, " is absent");
      if (op_.hasTag(at::Tag::dynamic_output_shape) && tensor.sizes() != slot.sizes())
        throw OtherShape(tensor.sizes(), slot.sizes());
      if (tensor.is_cpu() && !slot.is_cpu()) leaveOnHost(result, state);
      const bool same = sameGeometry(tensor, slot);
      if (same && tensor.const_data_ptr() == slot.const_data_ptr()) continue;
      ABELE_CHECK(tensor.scalar_type() == slot.scalar_type() && tensor.sizes() == slot.sizes(), op_.schema().name(),
                  " result ", result.index, " is ", memory::describe(tensor), ", planned ", memory::describe(slot));
      moves.emplace_back(&slot, tensor);
    }
    if (moves.empty()) return;
    for (auto& [to, from] : moves)
      if (std::any_of(results_.begin(), results_.end(), [&](const Result& other) {
            const at::Tensor& slot = other.slot.at(state.frame_of_group);
            return overlap(from, slot);
          }))
        from = from.clone();
    for (const auto& [to, from] : moves) moveInto(*to, from);
  }

  std::vector<Result> results_;
  const bool is_steered_;  // false on accelerators, and if values decide the sizes
  int64_t runs_ = 0;
  std::vector<memory::Steer> steers_;  // in the order of allocations
  std::vector<std::size_t> steered_;   // index of the result for each entry of steers_
};

std::vector<Result> wantedResults(const exe::Instruction& instruction, const SlotTable& slots) {
  std::vector<Result> wanted;
  for (std::size_t r = 0; r < instruction.results.size(); ++r) {
    const auto& ids = instruction.results[r];
    for (std::size_t e = 0; e < ids.size(); ++e)
      if (ids[e] >= 0 && slots.tensor(ids[e], 0).defined())
        wanted.push_back({r, static_cast<int32_t>(e), slots.ref(ids[e])});
  }
  return wanted;
}

// Computes in float32 and rounds stochastically to float16.
class RoundedCall final : public OperatorCall {
 public:
  RoundedCall(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots,
              std::vector<Result> results)
      : OperatorCall(instruction, op, slots), results_(std::move(results)) {
    const auto& parameters = op.schema().arguments();
    for (std::size_t i = 0; i < instruction.args.size(); ++i) {
      const Arg& arg = instruction.args[i];
      if (arg.kind == Arg::Kind::kInt && arg.i == static_cast<int64_t>(at::kHalf) && isType(parameters[i]))
        types_.push_back(i);
      if (arg.kind != Arg::Kind::kId || arg.i < 0) continue;
      const auto id = static_cast<int32_t>(arg.i);
      if (std::find(instruction.writes.begin(), instruction.writes.end(), id) != instruction.writes.end())
        written_.push_back({i, slots.ref(id)});
    }
  }

  void run(CallState& state) override {
    pushOperands(state);
    for (c10::IValue& value : state.stack) value = widened(value);
    for (const std::size_t i : types_) state.stack[i] = static_cast<int64_t>(at::kFloat);
    std::vector<at::Tensor> wide;
    for (const Written& written : written_) wide.push_back(state.stack[written.argument].toTensor());
    call(state);
    uint64_t part = 0;
    for (std::size_t i = 0; i < written_.size(); ++i)
      store(written_[i].slot.at(state.frame_of_group), wide[i], state.rounding.of(part++));
    for (const Result& result : results_)
      store(result.slot.at(state.frame_of_group), resultOf(result, state.stack), state.rounding.of(part++));
    state.stack.clear();
  }

 private:
  struct Written {
    std::size_t argument;
    SlotRef slot;
  };

  static bool isType(const c10::Argument& parameter) {
    c10::TypePtr type = parameter.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    return type->kind() == c10::TypeKind::ScalarTypeType;
  }
  static at::Tensor widened(const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
  }
  static c10::IValue widened(const c10::IValue& value) {
    if (value.isTensor()) return widened(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(widened(tensor));
    return list;
  }
  static void store(const at::Tensor& slot, const at::Tensor& value, kernels::RoundingSeed seed) {
    if (slot.scalar_type() == at::kHalf && value.scalar_type() == at::kFloat)
      kernels::roundInto(slot, value, seed);
    else if (slot.const_data_ptr() != value.const_data_ptr())
      moveInto(slot, value);
  }

  std::vector<Result> results_;
  std::vector<std::size_t> types_;  // positions of the arguments that name float16
  std::vector<Written> written_;
};

}  // namespace

// relu has no out= kernel, but it equals clamp_min with 0, which has one.
exe::Instruction withOutKernel(exe::Instruction instruction) {
  if (instruction.op == "aten::relu") {
    instruction.op = "aten::clamp_min";
    instruction.args.push_back(Arg::integer(0));
  }
  return instruction;
}

namespace {

// ATen's out= kernels of batch normalisation read wrong statistics if the input is not dense.
bool outKernelReads(const exe::Instruction& instruction, const SlotTable& slots) {
  static constexpr std::array kDenseOnly = {"aten::native_batch_norm", "aten::_native_batch_norm_legit",
                                            "aten::_native_batch_norm_legit.no_stats", "aten::_batch_norm_with_update"};
  if (std::find(kDenseOnly.begin(), kDenseOnly.end(), instruction.op) == kDenseOnly.end()) return true;
  const at::Tensor& x = slots.tensor(static_cast<int32_t>(instruction.args[0].i), 0);
  return x.is_contiguous() || x.is_contiguous(at::MemoryFormat::ChannelsLast) ||
         x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// Whether the shape of its results depends on values. Indices by position give the same shape, masks do not.
bool isShapedByValues(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (instruction.op != "aten::index.Tensor") return true;
  return std::ranges::any_of(instruction.args[1].ints, [&](int64_t id) {
    if (id < 0) return false;
    const DType dtype = slots.typeOf(static_cast<int32_t>(id)).dtype;
    return dtype == DType::kBool || dtype == DType::kUInt8;
  });
}

// Results that have a slot; for a Tensor[], one for each element. tensors_only: no result is a Tensor[].
std::vector<Result> homesOf(const exe::Instruction& instruction, const c10::OperatorHandle& op, const SlotTable& slots,
                            bool& tensors_only) {
  const auto& returns = op.schema().returns();
  std::vector<Result> results = wantedResults(instruction, slots);
  tensors_only = true;
  for (Result& result : results) {
    ABELE_CHECK(result.index < returns.size(), instruction.op, " has no result ", result.index);
    if (returns[result.index].type()->kind() == c10::TypeKind::ListType)
      tensors_only = false;
    else
      result.element = -1;
    if (!slots.device().is_cpu()) {
      const std::size_t element = static_cast<std::size_t>(std::max(result.element, 0));
      result.is_of_several = slots.isNamedBySeveral(instruction.results[result.index][element]);
    }
  }
  return results;
}

}  // namespace

std::unique_ptr<Call> makeRoundedOperatorCall(const exe::Instruction& instruction, const SlotTable& slots) {
  bool gives_half = false;
  exe::forEachWritten(instruction, [&](int32_t id) {
    gives_half = gives_half || (id >= 0 && slots.typeOf(id).dtype == DType::kFloat16);
  });
  if (!gives_half || instruction.random_draws >= 0) return nullptr;
  const c10::OperatorHandle op = kernels::findOperator(instruction.op, keyOf(slots));
  requireSignature(instruction, op.schema(), slots.device());
  bool tensors_only = true;
  std::vector<Result> results = homesOf(instruction, op, slots, tensors_only);
  return std::make_unique<RoundedCall>(instruction, op, slots, std::move(results));
}

std::unique_ptr<Call> makeOperatorCall(const exe::Instruction& recorded, const SlotTable& slots) {
  const exe::Instruction instruction = withOutKernel(recorded);
  const c10::OperatorHandle op = kernels::findOperator(instruction.op, keyOf(slots));
  requireSignature(recorded, kernels::findOperator(recorded.op, keyOf(slots)).schema(), slots.device());
  bool tensors_only = true;
  std::vector<Result> results = homesOf(instruction, op, slots, tensors_only);
  if (results.empty()) {
    if (instruction.op == "aten::bernoulli_.float" && slots.device().is_cpu())
      return std::make_unique<BernoulliCall>(instruction, op, slots);
    return std::make_unique<InPlaceCall>(instruction, op, slots);
  }
  if (isCopy(instruction))
    return callOf(
        [to = results[0].slot, from = slots.ref(static_cast<int32_t>(instruction.args[0].i))](CallState& state) {
          kernels::copyInto(to.at(state.frame_of_group), from.at(state.frame_of_group));
        });
  const bool has_all = results.size() == op.schema().returns().size() && tensors_only &&
                       instruction.args.size() == op.schema().arguments().size();
  if (has_all)
    if (std::unique_ptr<Call> call = BinaryCall::make(instruction, op, slots, results[0])) return call;
  if (std::unique_ptr<Call> call = makeProductCall(instruction, slots, results[0].slot)) return call;
  if (has_all && !isShapedByValues(instruction, op, slots) && outKernelReads(instruction, slots))
    if (const auto out = kernels::findOutVariant(op, keyOf(slots)))
      return std::make_unique<OutCall>(instruction, *out, slots, results);
  return std::make_unique<SteeredCall>(instruction, op, slots, std::move(results));
}

}  // namespace abele::device
