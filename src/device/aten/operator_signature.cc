#include "device/aten/operator_signature.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "base/error.h"
#include "base/hidden_writes.h"
#include "kernels/constants.h"

namespace abele::device {
namespace {

using Kind = Arg::Kind;

constexpr int64_t kLastMemoryFormat = static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d);

c10::TypePtr withoutOptional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

bool isTensor(const c10::TypePtr& type) { return type->kind() == c10::TypeKind::TensorType; }

// True for Tensor[], or for Tensor?[] if of_optional.
bool isTensorList(const c10::TypePtr& type, bool of_optional) {
  const auto list = type->cast<c10::ListType>();
  if (!list) return false;
  const c10::TypePtr element = list->getElementType();
  return of_optional ? isTensor(withoutOptional(element)) && !isTensor(element) : isTensor(element);
}

// A boxed call passes enumerators as numbers. A number without an enumerator would be an index past the end of a table.
bool isEnumerator(int64_t number, const c10::TypePtr& real) {
  switch (real->kind()) {
    case c10::TypeKind::ScalarTypeType: {
      const auto type = static_cast<DType>(number);
      return number >= -1 && number <= 127 && type != DType::kUndefined &&
             ((type >= DType::kUInt8 && type <= DType::kBool) || type == DType::kBFloat16);
    }
    case c10::TypeKind::LayoutType: return number == static_cast<int64_t>(at::kStrided);
    case c10::TypeKind::MemoryFormatType: return number >= 0 && number <= kLastMemoryFormat;
    default: return true;
  }
}

bool names(const std::string& name, c10::DeviceType type) {
  const std::string kind = c10::DeviceTypeName(type, /*lower_case=*/true);
  return name == kind || name.starts_with(kind + ":");
}

// "cuda:1" in a program for cuda:0 means any device of the kind. A stage on the host may belong to a program for the
// accelerator of this machine.
bool isOfKind(const std::string& name, c10::Device device) {
  if (!device.is_cpu()) return names(name, device.type());
  const std::optional<c10::DeviceType> accelerator = at::accelerator::getAccelerator();
  return name == "cpu" || (accelerator && names(name, *accelerator));
}

bool fits(const Arg& arg, const c10::Argument& parameter, c10::Device device) {
  const c10::TypePtr& type = parameter.type();
  const c10::TypePtr plain = withoutOptional(type);
  switch (arg.kind) {
    case Kind::kId: return isTensor(plain);  // kNone is an undefined tensor
    case Kind::kIdList:
      return isTensorList(plain, false) &&
             std::all_of(arg.ints.begin(), arg.ints.end(), [](int64_t id) { return id >= 0; });
    case Kind::kOptionalIdList: return isTensorList(plain, true);
    case Kind::kGenerator: return plain->kind() == c10::TypeKind::GeneratorType;
    case Kind::kNumber: return isTensor(plain);
    case Kind::kDevice: return plain->kind() == c10::TypeKind::DeviceObjType && isOfKind(arg.s, device);
    case Kind::kNone: return plain != type || isTensor(type) || type->kind() == c10::TypeKind::NoneType;
    case Kind::kInt:
      if (!isEnumerator(arg.i, withoutOptional(parameter.real_type()))) return false;
      break;
    default: break;
  }
  const c10::IValue value = kernels::constantValue(arg, parameter);
  if (value.isList() && value.toListRef().empty()) return plain->kind() == c10::TypeKind::ListType;
  return value.type()->isSubtypeOf(*type) || (plain->kind() == c10::TypeKind::NumberType && value.isScalar()) ||
         (plain->kind() == c10::TypeKind::ListType && value.type()->isSubtypeOf(*plain));
}

/// ATen's batch normalisation reads its statistics without checking that they exist; eager PyTorch crashes too.
/// Returns: the missing argument, or "".
std::string missingStatistics(const exe::Instruction& instruction, const c10::FunctionSchema& schema) {
  if (instruction.op.find("batch_norm") == std::string::npos) return {};
  const auto argument = [&](const char* name) -> const Arg* {
    const std::optional<int> index = schema.argumentIndexWithName(name);
    return index ? &instruction.args[*index] : nullptr;
  };
  const Arg* trains = argument("training");
  if (!trains) trains = argument("train");
  if (!trains) trains = argument("update");  // the name in batch_norm_backward
  if (!trains) return {};
  for (const char* name : {"running_mean", "running_var", "save_mean", "save_invstd", "save_var"}) {
    const Arg* statistic = argument(name);
    const bool is_read = std::string_view(name).starts_with("save") ? statistic && trains->i : !trains->i;
    if (is_read && !(statistic && statistic->kind == Kind::kId && statistic->i >= 0)) return name;
  }
  return {};
}

/// Waits, fetches and inputs are derived from the slots that an instruction says it writes, so it must name all that
/// the operator really writes. Returns: a written argument that it does not name, or "".
std::string unlistedWrite(const exe::Instruction& instruction, const c10::FunctionSchema& schema) {
  const std::vector<c10::Argument>& parameters = schema.arguments();
  const HiddenWrites* hidden = hiddenWrites(instruction.op);
  if (hidden && hidden->training_arg >= 0 && instruction.args[hidden->training_arg].i == 0) hidden = nullptr;
  const auto isListed = [&](int64_t slot) {
    return slot < 0 ||
           std::find(instruction.writes.begin(), instruction.writes.end(), slot) != instruction.writes.end();
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const c10::AliasInfo* alias = parameters[i].alias_info();
    const bool is_hidden =
        hidden && std::find(hidden->args.begin(), hidden->args.end(), static_cast<int>(i)) != hidden->args.end();
    if (!is_hidden && !(alias && alias->isWrite())) continue;
    const Arg& arg = instruction.args[i];
    if ((arg.kind == Kind::kId && !isListed(arg.i)) ||
        (arg.kind != Kind::kId && arg.holdsIds() && !std::all_of(arg.ints.begin(), arg.ints.end(), isListed)))
      return parameters[i].name();
  }
  return {};
}

[[noreturn]] void refuse(const exe::Instruction& instruction, std::string what, const c10::FunctionSchema& schema) {
  std::string text = toString(schema);
  throwUser(ErrorCode::E0501, {.what = cat(instruction.op, ": ", what),
                               .expected = std::move(text),
                               .remedy = "make the executable again with this version of Abele"});
}

}  // namespace

void requireSignature(const exe::Instruction& instruction, const c10::FunctionSchema& schema, c10::Device device) {
  const std::vector<c10::Argument>& parameters = schema.arguments();
  if (instruction.args.size() != parameters.size())
    refuse(instruction, cat(instruction.args.size(), " arguments"), schema);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!fits(instruction.args[i], parameters[i], device))
      refuse(instruction, cat("argument ", parameters[i].name()), schema);
  if (const std::string missing = missingStatistics(instruction, schema); !missing.empty())
    refuse(instruction, cat("argument ", missing), schema);
  if (const std::string unlisted = unlistedWrite(instruction, schema); !unlisted.empty())
    refuse(instruction, cat("writes argument ", unlisted, ", which it does not list"), schema);
  if (instruction.results.size() > schema.returns().size())
    refuse(instruction, cat(instruction.results.size(), " results"), schema);
  for (size_t r = 0; r < instruction.results.size(); ++r) {
    const bool is_list = schema.returns()[r].type()->kind() == c10::TypeKind::ListType;
    if (!is_list && instruction.results[r].size() > 1)
      refuse(instruction, cat("several tensors of result ", r), schema);
  }
}

}  // namespace abele::device
