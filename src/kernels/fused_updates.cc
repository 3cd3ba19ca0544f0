// Compiled for processors with fused multiply-add (CMakeLists.txt). Includes no header with inline functions that other
// units use, because the linker may pick this unit's copy for them.
#include "kernels/fused_updates.h"

namespace abele::kernels::fused {
namespace {

inline float multiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// at::lerp, which starts from the nearer end.
struct Lerp {
  Lerp(float weight, float /*kept*/)
      : is_small((weight < 0 ? -weight : weight) < 0.5F), factor(is_small ? weight : weight - 1) {}
  float operator()(float from, float to) const { return multiplyAdd(factor, to - from, is_small ? from : to); }
  bool is_small;
  float factor;
};
// mul_, then add_ with a factor.
struct WeightedSum {
  WeightedSum(float weight, float kept_share) : taken(weight), kept(kept_share) {}
  float operator()(float from, float to) const { return multiplyAdd(to, taken, from * kept); }
  float taken, kept;
};

template <bool kDecays>
float gradientOf(float weight, float sum, const Gradient& with) {
  const float gradient = sum * with.scale;
  return kDecays ? multiplyAdd(weight, with.decay, gradient) : gradient;
}

template <bool kDecays, bool kNesterov>
void momentum(int64_t count, float* __restrict weight, const float* __restrict sum, float* __restrict velocity,
              const Sgd with) {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradientOf<kDecays>(weight[i], sum[i], with.gradient);
    const float v = multiplyAdd(gradient, with.taken, velocity[i] * with.momentum);
    velocity[i] = v;
    const float step = kNesterov ? multiplyAdd(v, with.momentum, gradient) : v;
    weight[i] = multiplyAdd(step, with.rate, weight[i]);
  }
}

template <bool kDecays>
void plain(int64_t count, float* __restrict weight, const float* __restrict sum, const Sgd with) {
  for (int64_t i = 0; i < count; ++i)
    weight[i] = multiplyAdd(gradientOf<kDecays>(weight[i], sum[i], with.gradient), with.rate, weight[i]);
}

template <bool kDecays, class Mean>
void adamStates(int64_t count, float* __restrict weight, const float* __restrict sum, float* __restrict average,
                float* __restrict square, const Adam with) {
  const Mean mean(with.taken, with.kept);
  for (int64_t i = 0; i < count; ++i) {
    const float w = weight[i] * with.shrinkage;
    const float gradient = gradientOf<kDecays>(w, sum[i], with.gradient);
    weight[i] = w;
    average[i] = mean(average[i], gradient);
    square[i] = multiplyAdd(with.taken2 * gradient, gradient, square[i] * with.beta2);
  }
}

void adamWeights(int64_t count, float* __restrict weight, const float* __restrict average, const float* __restrict root,
                 const Adam with) {
  for (int64_t i = 0; i < count; ++i) weight[i] = weight[i] + with.rate * average[i] / (root[i] / with.root + with.eps);
}

template <bool kDecays, bool kCentered, class Mean>
void rmspropStates(int64_t count, const float* __restrict weight, const float* __restrict sum, float* __restrict square,
                   float* __restrict average, float* __restrict spread, const Rmsprop with) {
  const Mean mean(with.taken, with.alpha);
  const float under_root = with.eps_under_root ? with.eps : 0;
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradientOf<kDecays>(weight[i], sum[i], with.gradient);
    const float s = multiplyAdd(with.taken * gradient, gradient, square[i] * with.alpha);
    square[i] = s;
    if (kCentered) {
      const float a = mean(average[i], gradient);
      average[i] = a;
      spread[i] = multiplyAdd(-a, a, s) + under_root;
    } else {
      spread[i] = s + under_root;
    }
  }
}

template <bool kDecays, bool kMomentum>
void rmspropWeights(int64_t count, float* __restrict weight, const float* __restrict sum, const float* __restrict root,
                    float* __restrict velocity, const Rmsprop with) {
  const float beside_root = with.eps_under_root ? 0 : with.eps;
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradientOf<kDecays>(weight[i], sum[i], with.gradient);
    const float denominator = root[i] + beside_root;
    if (kMomentum) {
      const float v = velocity[i] * with.momentum + with.velocity_rate * gradient / denominator;
      velocity[i] = v;
      weight[i] = multiplyAdd(v, with.rate, weight[i]);
    } else {
      weight[i] = weight[i] + with.rate * gradient / denominator;
    }
  }
}

struct Yes {
  static constexpr bool value = true;
};
struct No {
  static constexpr bool value = false;
};

// Calls fn with the flag as a constant, so that the loop has no branch inside.
template <class Fn>
void choose(bool flag, const Fn& fn) {
  flag ? fn(Yes()) : fn(No());
}

}  // namespace

void update(int64_t count, float* weight, const float* sum, float* velocity, const Sgd& with) {
  choose(with.gradient.decay != 0, [&](auto decays) {
    if (velocity == nullptr)
      plain<decays.value>(count, weight, sum, with);
    else
      choose(with.nesterov,
             [&](auto nesterov) { momentum<decays.value, nesterov.value>(count, weight, sum, velocity, with); });
  });
}

void updateStates(int64_t count, float* weight, const float* sum, float* average, float* square, const Adam& with) {
  choose(with.gradient.decay != 0, [&](auto decays) {
    if (with.lerps)
      adamStates<decays.value, Lerp>(count, weight, sum, average, square, with);
    else
      adamStates<decays.value, WeightedSum>(count, weight, sum, average, square, with);
  });
}

void updateWeights(int64_t count, float* weight, const float* average, const float* root, const Adam& with) {
  adamWeights(count, weight, average, root, with);
}

void updateStates(int64_t count, const float* weight, const float* sum, float* square, float* average, float* spread,
                  const Rmsprop& with) {
  choose(with.gradient.decay != 0, [&](auto decays) {
    choose(average != nullptr, [&](auto centered) {
      if (with.lerps)
        rmspropStates<decays.value, centered.value, Lerp>(count, weight, sum, square, average, spread, with);
      else
        rmspropStates<decays.value, centered.value, WeightedSum>(count, weight, sum, square, average, spread, with);
    });
  });
}

void updateWeights(int64_t count, float* weight, const float* sum, const float* root, float* velocity,
                   const Rmsprop& with) {
  choose(with.gradient.decay != 0, [&](auto decays) {
    choose(velocity != nullptr, [&](auto momentum) {
      rmspropWeights<decays.value, momentum.value>(count, weight, sum, root, velocity, with);
    });
  });
}

}  // namespace abele::kernels::fused
