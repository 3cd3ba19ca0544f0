// Accumulation and weight updates against the operator sequences of torch/optim/{sgd,adam}.py.
#include <cmath>
#include <map>

#include "harness.h"

namespace abele::device::testing {
namespace {

using Hypers = std::map<std::string, double>;
constexpr int64_t kUpdated = 33003;  // several parts, no multiple of a vector, split by eager where it has two threads
constexpr int kSteps = 5;

// Gradients come in as inputs: two micro-batches a step.
class UpdateTest : public ::testing::Test {
 protected:
  // state: number of per-element states after param and accumulator; scalar: a step counter after them.
  void build(const std::string& op, int states, bool counter, std::vector<Arg> last) {
    const Type type = f32({kUpdated});
    const int32_t gradient = program.input(type);
    std::vector<Arg> args = {Arg::id(program.external(type, exe::ExternalKind::kParameter)),
                             Arg::id(program.external(type, exe::ExternalKind::kAccumulator))};
    for (int i = 0; i < states; ++i) args.push_back(Arg::id(program.external(type, exe::ExternalKind::kState)));
    if (counter) args.push_back(Arg::id(program.external(f32({}), exe::ExternalKind::kState)));
    program.op("abele::accumulate", {args[1], Arg::id(gradient)});
    args.insert(args.end(), last.begin(), last.end());
    program.update(op, args);
  }

  template <class Eager>
  void compare(const Hypers& hypers, Eager&& eager) {
    at::manual_seed(11);
    Runner runner(program);
    at::Tensor param = at::randn({kUpdated});
    runner.backend().upload(0, param);
    for (const auto& [name, value] : hypers) runner.backend().setHyper(0, name, value);
    const auto found = hypers.find("gradient_scale");
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor g = at::randn({2 * kUpdated});
      runner.step({g});
      at::Tensor sum = g.narrow(0, 0, kUpdated).clone();
      sum.add_(g.narrow(0, kUpdated, kUpdated));
      if (found != hypers.end()) sum = sum * found->second;
      eager(param, sum);
      ASSERT_TRUE(sameBits(runner.backend().external(0), param)) << "after step " << step;
    }
  }

  Program program{2};
};

struct Sgd {
  double lr, momentum, dampening, weight_decay;
  bool nesterov = false, maximize = false;
  at::Tensor velocity;

  void operator()(at::Tensor& param, at::Tensor grad) {
    if (maximize) grad = -grad;
    if (weight_decay != 0) grad = grad.add(param, weight_decay);
    if (momentum != 0) {
      if (!velocity.defined()) velocity = at::zeros_like(grad);
      velocity.mul_(momentum).add_(grad, 1 - dampening);
      grad = nesterov ? grad.add(velocity, momentum) : velocity;
    }
    param.add_(grad, momentum != 0 ? -lr : -(lr * (1 - dampening)));
  }
};

struct Adam {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled = false, maximize = false;
  at::Tensor exp_avg, exp_avg_sq;
  int step = 0;

  void operator()(at::Tensor& param, at::Tensor grad) {
    if (!exp_avg.defined()) exp_avg = at::zeros_like(param), exp_avg_sq = at::zeros_like(param);
    if (maximize) grad = -grad;
    ++step;
    if (weight_decay != 0) {
      if (decoupled)
        param.mul_(1 - lr * weight_decay);
      else
        grad = grad.add(param, weight_decay);
    }
    exp_avg.lerp_(grad, 1 - beta1);
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
    const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
    const at::Tensor denominator = (exp_avg_sq.sqrt() / std::pow(correction2, 0.5)).add_(eps);
    param.addcdiv_(exp_avg, denominator, -(lr / correction1));
  }
};

TEST_F(UpdateTest, PlainSgd) {
  build("abele::sgd_", 0, false, {Arg::none(), Arg::integer(0)});
  compare({{"lr", 0.1}}, Sgd{0.1, 0, 0, 0});
}
TEST_F(UpdateTest, PlainSgdWithDampeningAndDecay) {
  build("abele::sgd_", 0, false, {Arg::none(), Arg::integer(0)});
  compare({{"lr", 0.1}, {"dampening", 0.25}, {"weight_decay", 0.01}}, Sgd{0.1, 0, 0.25, 0.01});
}
TEST_F(UpdateTest, SgdWithMomentum) {
  build("abele::sgd_", 1, false, {Arg::integer(0)});
  compare({{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.5}, {"weight_decay", 0.01}, {"maximize", 1}},
          Sgd{0.1, 0.9, 0.5, 0.01, false, true});
}
TEST_F(UpdateTest, SgdNesterovWithGradientScale) {
  build("abele::sgd_", 1, false, {Arg::integer(0)});
  compare({{"lr", 0.1}, {"momentum", 0.9}, {"nesterov", 1}, {"gradient_scale", 1.0 / 3}}, Sgd{0.1, 0.9, 0, 0, true});
}
TEST_F(UpdateTest, AdamPlain) {
  build("abele::adam_", 2, true, {Arg::integer(0)});
  compare({{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}}, Adam{1e-3, 0.9, 0.999, 1e-8, 0});
}
TEST_F(UpdateTest, AdamWithDecayAndMaximize) {
  build("abele::adam_", 2, true, {Arg::integer(0)});
  compare({{"lr", 1e-2}, {"beta1", 0.4}, {"beta2", 0.99}, {"eps", 1e-6}, {"weight_decay", 0.1}, {"maximize", 1}},
          Adam{1e-2, 0.4, 0.99, 1e-6, 0.1, false, true});
}
TEST_F(UpdateTest, AdamW) {
  build("abele::adamw_", 2, true, {Arg::integer(0)});
  compare({{"lr", 1e-3}, {"weight_decay", 0.01}, {"gradient_scale", 0.5}}, Adam{1e-3, 0.9, 0.999, 1e-8, 0.01, true});
}

TEST_F(UpdateTest, MomentumWithoutItsBufferIsAnError) {
  build("abele::sgd_", 0, false, {Arg::none(), Arg::integer(0)});
  Runner runner(program);
  runner.backend().setHyper(0, "momentum", 0.9);
  EXPECT_THROW(runner.step({at::zeros({2 * kUpdated})}), UserError);
}

TEST_F(UpdateTest, UnknownHyperParameterIsAnError) {
  build("abele::sgd_", 0, false, {Arg::none(), Arg::integer(0)});
  Runner runner(program);
  EXPECT_THROW(runner.backend().setHyper(0, "learning_rate", 0.9), UserError);
}

}  // namespace
}  // namespace abele::device::testing
