#include "capture/arguments.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>

#include "base/error.h"

namespace abele::capture {
namespace {

// RecordFunction::inputs() asserts, in units compiled without NDEBUG, a flag that a release build of torch never sets.
// So the member itself is named here, as an explicit instantiation may.
using Inputs = c10::ArrayRef<const c10::IValue>;
Inputs memberOf(const at::RecordFunction& function);
template <Inputs at::RecordFunction::*member>
struct MemberAccess {
  friend Inputs memberOf(const at::RecordFunction& function) { return function.*member; }
};
template struct MemberAccess<&at::RecordFunction::inputs_>;

Arg complexArg(c10::complex<double> value) {
  Arg arg = Arg::real(value.real());
  arg.kind = Arg::Kind::kComplex;
  arg.d2 = value.imag();
  return arg;
}

Arg list(Arg::Kind kind) {
  Arg arg;
  arg.kind = kind;
  return arg;
}

/// A list whose elements are boxed one by one: SymInt[], Scalar[], int[] of some callers. All of one kind.
std::optional<Arg> genericListArg(c10::ArrayRef<c10::IValue> elements) {
  Arg result = list(Arg::Kind::kIntList);
  for (const c10::IValue& element : elements) {
    std::optional<Arg> arg = plainArg(element);
    if (!arg) return std::nullopt;
    Arg::Kind kind;
    switch (arg->kind) {
      case Arg::Kind::kInt:
        kind = Arg::Kind::kIntList;
        result.ints.push_back(arg->i);
        break;
      case Arg::Kind::kBool:
        kind = Arg::Kind::kBoolList;
        result.ints.push_back(arg->i);
        break;
      case Arg::Kind::kDouble:
        kind = Arg::Kind::kDoubleList;
        result.doubles.push_back(arg->d);
        break;
      case Arg::Kind::kString:
        kind = Arg::Kind::kStringList;
        result.strings.push_back(arg->s);
        break;
      default: return std::nullopt;
    }
    if (&element != elements.begin() && kind != result.kind) return std::nullopt;
    result.kind = kind;
  }
  return result;
}

bool isListOf(const c10::Argument& argument, bool optional_elements) {
  c10::TypePtr type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  auto list_type = type->cast<c10::ListType>();
  if (!list_type) return false;
  c10::TypePtr element = list_type->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return !optional_elements;
  auto optional = element->cast<c10::OptionalType>();
  return optional_elements && optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::optional<Arg> plainArg(const c10::IValue& value) {
  if (value.isNone()) return Arg::none();
  if (value.isBool()) return Arg::boolean(value.toBool());
  if (value.isInt()) return Arg::integer(value.toInt());
  if (value.isDouble()) return Arg::real(value.toDouble());
  if (value.isComplexDouble()) return complexArg(value.toComplexDouble());
  if (value.isSymInt()) return Arg::integer(value.toSymInt().guard_int(__FILE__, __LINE__));
  if (value.isSymFloat()) return Arg::real(value.toSymFloat().guard_float(__FILE__, __LINE__));
  if (value.isSymBool()) return Arg::boolean(value.toSymBool().guard_bool(__FILE__, __LINE__));
  if (value.isString()) return Arg::string(value.toStringRef());
  if (value.isDevice()) {
    // Without its number: a stage has its own device, and each process captures on one of its own.
    Arg arg = Arg::string(c10::DeviceTypeName(value.toDevice().type(), /*lower_case=*/true));
    arg.kind = Arg::Kind::kDevice;
    return arg;
  }
  if (value.isGenerator()) return list(Arg::Kind::kGenerator);
  if (value.isIntList()) return Arg::intList(value.toIntVector());
  if (value.isDoubleList()) {
    Arg arg = list(Arg::Kind::kDoubleList);
    arg.doubles = value.toDoubleVector();
    return arg;
  }
  if (value.isBoolList()) {
    Arg arg = list(Arg::Kind::kBoolList);
    for (bool element : value.toBoolList()) arg.ints.push_back(element);
    return arg;
  }
  if (value.isList()) return genericListArg(value.toListRef());
  return std::nullopt;
}

bool isTensorList(const c10::Argument& argument) { return isListOf(argument, /*optional_elements=*/false); }
bool isOptionalTensorList(const c10::Argument& argument) { return isListOf(argument, /*optional_elements=*/true); }

void forEachTensor(const c10::IValue& value, c10::function_ref<void(int32_t, const at::Tensor&)> fn) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) fn(-1, value.toTensor());
    return;
  }
  if (!value.isList()) return;
  if (value.isIntList() || value.isDoubleList() || value.isBoolList()) return;
  int32_t index = 0;
  for (const c10::IValue& element : value.toListRef()) {
    if (element.isTensor() && element.toTensor().defined()) fn(index, element.toTensor());
    ++index;
  }
}

Arg numberArg(const at::Tensor& tensor) {
  Arg arg;
  switch (tensor.scalar_type()) {
    case at::kDouble: arg = Arg::real(*tensor.const_data_ptr<double>()); break;
    case at::kLong: arg = Arg::integer(*tensor.const_data_ptr<int64_t>()); break;
    case at::kBool: arg = Arg::boolean(*tensor.const_data_ptr<bool>()); break;
    case at::kComplexDouble: arg = complexArg(*tensor.const_data_ptr<c10::complex<double>>()); break;
    default: ABELE_CHECK(false, "a wrapped number of type ", c10::toString(tensor.scalar_type()));
  }
  arg.number_kind = arg.kind;
  arg.kind = Arg::Kind::kNumber;
  return arg;
}

c10::ArrayRef<const c10::IValue> inputsOf(const at::RecordFunction& function) { return memberOf(function); }

}  // namespace abele::capture
