// Compiled for processors with fused multiply-add (CMakeLists.txt). Includes no header with inline functions that other
// units use, because the linker may pick this unit's copy for them.
#include "kernels/fused_updates.h"

namespace abele::kernels::fused {
namespace {

inline float multiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float asFloat(double number) { return static_cast<float>(number); }

// The operators of update_formulas.h for one element.
struct OnFloats {
  void mul_(float& self, double by) const { self *= asFloat(by); }
  void div_(float& self, double by) const { self /= asFloat(by); }
  void add_(float& self, double term) const { self += asFloat(term); }
  void add_(float& self, float term, double alpha) const { self = multiplyAdd(term, asFloat(alpha), self); }
  void addcmul_(float& self, float b, float c, double value) const { self = addcmul(self, b, c, value); }
  void addcdiv_(float& self, float b, float c, double value) const { self += asFloat(value) * b / c; }
  // Starts from the nearer end, as ATen does.
  void lerp_(float& self, float to, double share) const {
    const float weight = asFloat(share);
    const bool is_small = (weight < 0 ? -weight : weight) < 0.5F;
    self = multiplyAdd(is_small ? weight : weight - 1, to - self, is_small ? self : to);
  }
  float scaled(float a, double by, bool is_negated) const { return a * asFloat(is_negated ? -by : by); }
  float add(float a, double term) const { return a + asFloat(term); }
  float add(float a, float b, double alpha) const { return multiplyAdd(b, asFloat(alpha), a); }
  float addcmul(float a, float b, float c, double value) const { return multiplyAdd(asFloat(value) * b, c, a); }
};

template <unsigned kTraits>
struct Constant {
  constexpr operator unsigned() const { return kTraits; }
};

// Calls fn with those of the traits that kAsked has, as a constant.
template <unsigned kAsked, unsigned kFound = 0, class Fn>
void withConstant(unsigned traits, const Fn& fn) {
  constexpr unsigned kFirst = kAsked & -kAsked;
  if constexpr (kAsked == 0)
    fn(Constant<kFound>());
  else if (traits & kFirst)
    withConstant<kAsked - kFirst, kFound | kFirst>(traits, fn);
  else
    withConstant<kAsked - kFirst, kFound>(traits, fn);
}

template <class Fn, class... Elements>
void forEach(int64_t count, Fn fn, Elements* __restrict... at) {
  for (int64_t i = 0; i < count; ++i) fn(at[i]...);
}

}  // namespace

void sgd(int64_t count, Memory at, unsigned traits, const Hyper& given) {
  withConstant<kDecays | kMomentum | kNesterov>(traits, [&](auto has) {
    forEach(
        count,
        [has, with = given](float& weight, float sum, float& velocity) {
          kernels::sgd(OnFloats(), has, weight, sum, velocity, with);
        },
        at[0], at[1], at[2]);
  });
}

void adamStates(int64_t count, Memory at, unsigned traits, const AdamStep<double>& given_step, const Hyper& given) {
  withConstant<kDecays | kAsLibtorch | kShrinks>(traits, [&](auto has) {
    forEach(
        count,
        [has, step = given_step, with = given](float& weight, float sum, float& average, float& square) {
          kernels::adamStates(OnFloats(), has, weight, sum, average, square, step, with);
        },
        at[0], at[1], at[2], at[3]);
  });
}

void adamWeight(int64_t count, Memory at, float* root, const AdamStep<double>& given_step, const Hyper& given) {
  forEach(
      count,
      [step = given_step, with = given](float& weight, float average, float root) {
        kernels::adamWeight(OnFloats(), weight, average, root, step, with);
      },
      at[0], at[2], root);
}

void rmspropStates(int64_t count, Memory at, float* under_root, unsigned traits, const Hyper& given) {
  withConstant<kDecays | kAsLibtorch | kCentered | kTf>(traits, [&](auto has) {
    forEach(
        count,
        [has, with = given](float weight, float sum, float& square, float& average, float& under_root) {
          const float gradient = gradientOf(OnFloats(), has, weight, sum, with.weight_decay, with);
          under_root = kernels::rmspropStates(OnFloats(), has, gradient, square, average, with);
        },
        at[0], at[1], at[2], at[3], under_root);
  });
}

void rmspropWeight(int64_t count, Memory at, float* root, unsigned traits, const Hyper& given) {
  withConstant<kDecays | kMomentum | kTf>(traits, [&](auto has) {
    forEach(
        count,
        [has, with = given](float& weight, float sum, float root, float& velocity) {
          const float gradient = gradientOf(OnFloats(), has, weight, sum, with.weight_decay, with);
          kernels::rmspropWeight(OnFloats(), has, weight, gradient, root, velocity, with);
        },
        at[0], at[1], root, at[4]);
  });
}

}  // namespace abele::kernels::fused
