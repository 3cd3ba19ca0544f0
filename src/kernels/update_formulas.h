// The updates of weights, each written once. The argument `a` does the arithmetic: with ATen's operators, with torch's
// operators on lists, or on single floats in a loop. Its functions have ATen's names and arguments. Functions with an
// underscore change their first argument. The result of any other function is valid until the next call of such a
// function.
#pragma once

#include "kernels/hyper.h"

namespace abele::kernels {

/// The variants of an update, as bits. In loops they are compile-time constants, so loops have no branches.
enum UpdateTrait : unsigned {
  kDecays = 1,      // the gradient has an L2 term
  kAsLibtorch = 2,  // rounds as the classes of C++
  kMomentum = 4,
  kNesterov = 8,
  kShrinks = 16,   // Adam: decays the weight itself
  kCentered = 32,  // RMSprop
  kTf = 64,        // RMSprop, TensorFlow's variant
};

/// Adam's numbers in the current step. Number: the type of root and rate, which differ from parameter to parameter of a
/// list.
template <class Number>
struct AdamStep {
  double l2, shrinkage;
  Number root, rate;
};

/// The first step of every update computes the gradient: the scaled sum, negated if the loss is maximised, with the L2
/// term.
template <class A, class Traits, class T>
T gradientOf(const A& a, Traits has, const T& weight, const T& sum, double decay, const Hyper& with) {
  const T gradient = a.scaled(sum, with.gradient_scale, with.maximize);
  return has & kDecays ? a.add(gradient, weight, decay) : gradient;
}

template <class A, class Traits, class T>
void sgd(const A& a, Traits has, T& weight, const T& sum, T& velocity, const Hyper& with) {
  const T gradient = gradientOf(a, has, weight, sum, with.weight_decay, with);
  if (!(has & kMomentum)) return a.add_(weight, gradient, -(with.lr * (1 - with.dampening)));
  a.mul_(velocity, with.momentum);
  a.add_(velocity, gradient, 1 - with.dampening);
  a.add_(weight, has & kNesterov ? a.add(gradient, velocity, with.momentum) : velocity, -with.lr);
}

template <class A, class Traits, class T>
void moveMean(const A& a, Traits has, T& mean, const T& gradient, double beta) {
  if (!(has & kAsLibtorch)) return a.lerp_(mean, gradient, 1 - beta);
  a.mul_(mean, beta);
  a.add_(mean, gradient, 1 - beta);
}

// Adam and RMSprop have two parts, because ATen computes the root between them.
template <class A, class Traits, class T, class Number>
void adamStates(const A& a, Traits has, T& weight, const T& sum, T& average, T& square, const AdamStep<Number>& step,
                const Hyper& with) {
  if (has & kShrinks) a.mul_(weight, step.shrinkage);
  const T gradient = gradientOf(a, has, weight, sum, step.l2, with);
  moveMean(a, has, average, gradient, with.beta1);
  a.mul_(square, with.beta2);
  a.addcmul_(square, gradient, gradient, 1 - with.beta2);
}

template <class A, class T, class Number>
void adamWeight(const A& a, T& weight, const T& average, T root, const AdamStep<Number>& step, const Hyper& with) {
  a.div_(root, step.root);
  a.add_(root, with.eps);
  a.addcdiv_(weight, average, root, step.rate);
}

/// Returns the value whose square root is needed.
template <class A, class Traits, class T>
T rmspropStates(const A& a, Traits has, const T& gradient, T& square, T& average, const Hyper& with) {
  a.mul_(square, with.alpha);
  a.addcmul_(square, gradient, gradient, 1 - with.alpha);
  T under_root = square;
  if (has & kCentered) {
    moveMean(a, has, average, gradient, with.alpha);
    under_root = a.addcmul(square, average, average, -1);
  }
  if (has & kTf) under_root = a.add(under_root, with.eps);
  return under_root;
}

template <class A, class Traits, class T>
void rmspropWeight(const A& a, Traits has, T& weight, const T& gradient, T root, T& velocity, const Hyper& with) {
  if (!(has & kTf)) a.add_(root, with.eps);
  if (!(has & kMomentum)) return a.addcdiv_(weight, gradient, root, -with.lr);
  a.mul_(velocity, with.momentum);
  a.addcdiv_(velocity, gradient, root, has & kTf ? with.lr : 1);
  a.add_(weight, velocity, has & kTf ? -1 : -with.lr);
}

}  // namespace abele::kernels
