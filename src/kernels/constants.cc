#include "kernels/constants.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include "base/error.h"

namespace abele::kernels {
namespace {

template <class T, class From>
c10::IValue listOf(const std::vector<From>& values) {
  c10::List<T> list;
  list.reserve(values.size());
  for (const From& value : values) list.push_back(static_cast<T>(value));
  return list;
}

c10::Scalar numberOf(const Arg& arg) {
  switch (arg.number_kind) {
    case Arg::Kind::kBool: return {arg.i != 0};
    case Arg::Kind::kInt: return {arg.i};
    case Arg::Kind::kDouble: return {arg.d};
    case Arg::Kind::kComplex: return {c10::complex<double>(arg.d, arg.d2)};
    default: break;
  }
  throwInternal(__FILE__, __LINE__, "number_kind", "a number without a kind");
}

// The element type of T[] and T[]?.
c10::TypePtr elementType(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return elementType(optional->getElementType());
  if (auto list = type->cast<c10::ListType>()) return list->getElementType();
  return nullptr;
}

bool wantsScalars(const c10::Argument& parameter) {
  const c10::TypePtr element = elementType(parameter.real_type());
  return element && element->kind() == c10::TypeKind::NumberType;
}

}  // namespace

c10::IValue constantValue(const Arg& arg, const c10::Argument& parameter) {
  switch (arg.kind) {
    case Arg::Kind::kNone: return {};
    case Arg::Kind::kBool: return arg.i != 0;
    case Arg::Kind::kInt: return arg.i;
    case Arg::Kind::kDouble: return arg.d;
    case Arg::Kind::kComplex: return c10::complex<double>(arg.d, arg.d2);
    case Arg::Kind::kString: return arg.s;
    case Arg::Kind::kIntList:
      return wantsScalars(parameter) ? listOf<c10::Scalar>(arg.ints) : listOf<int64_t>(arg.ints);
    case Arg::Kind::kDoubleList:
      return wantsScalars(parameter) ? listOf<c10::Scalar>(arg.doubles) : listOf<double>(arg.doubles);
    case Arg::Kind::kBoolList: return listOf<bool>(arg.ints);
    case Arg::Kind::kStringList: return listOf<std::string>(arg.strings);
    case Arg::Kind::kDevice: return c10::Device(arg.s);
    case Arg::Kind::kNumber: {
      at::Tensor number = c10::scalar_to_tensor(numberOf(arg));
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return number;
    }
    default: break;
  }
  throwInternal(__FILE__, __LINE__, "constantValue", cat("argument ", parameter.name(), " is not a constant"));
}

}  // namespace abele::kernels
