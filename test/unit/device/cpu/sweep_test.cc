// Many operators: results in planned slots have the bits that the functional operator returns.
#include "harness.h"
#include "kernels/constants.h"
#include "kernels/operator_lookup.h"

namespace abele::device::testing {
namespace {

struct Case {
  std::string op;
  std::vector<at::Tensor> tensors;
  std::vector<Arg> args;  // ids are indices of tensors
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.op; }

Arg t(int64_t index) { return Arg::id(index); }
Arg i(int64_t value) { return Arg::integer(value); }
Arg d(double value) { return Arg::real(value); }
Arg b(bool value) { return Arg::boolean(value); }
Arg ints(std::vector<int64_t> values) { return Arg::intList(std::move(values)); }
Arg none() { return Arg::none(); }

std::vector<at::Tensor> eager(const Case& c) {
  const c10::OperatorHandle op = kernels::findOperator(c.op);
  torch::jit::Stack stack;
  for (std::size_t k = 0; k < c.args.size(); ++k) {
    const Arg& arg = c.args[k];
    if (arg.kind == Arg::Kind::kIdList) {
      c10::List<at::Tensor> list;
      for (const int64_t id : arg.ints) list.push_back(c.tensors[id]);
      stack.emplace_back(list);
    } else {
      stack.push_back(arg.kind == Arg::Kind::kId ? c10::IValue(c.tensors[arg.i])
                                                 : kernels::constantValue(arg, op.schema().arguments()[k]));
    }
  }
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

std::vector<Case> cases() {
  at::manual_seed(21);
  const at::Tensor x = at::randn({6, 10}), y = at::randn({6, 10}), w = at::randn({10, 10}), v = at::randn({10});
  const at::Tensor p = at::rand({6, 10}) + 0.1, half = x.to(at::kBFloat16), strided = at::randn({10, 6}).t();
  const at::Tensor image = at::randn({2, 4, 8, 8}), batch = at::randn({3, 6, 10}), batch2 = at::randn({3, 10, 5});
  const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor classes = at::randint(10, {6}, at::kLong), rows = at::randint(6, {4}, at::kLong);
  const at::Tensor mask = x > 0, log_p = at::log_softmax(x, 1), zero_dim = at::scalar_tensor(0.7);
  const auto nll = at::nll_loss_forward(log_p, classes, {}, 1, -100);
  const at::Tensor grad_image = at::randn({2, 4, 4, 4});
  const at::Tensor pool_index = std::get<1>(at::max_pool2d_with_indices(image, {2, 2}, {2, 2}));
  std::vector<Case> all;
  for (const char* unary :
       {"relu", "tanh", "sigmoid",   "exp",        "log",   "sqrt",  "rsqrt",       "neg",   "abs",  "sin",
        "erf",  "silu", "hardswish", "reciprocal", "log1p", "expm1", "logical_not", "isnan", "sign", "floor"})
    for (const at::Tensor& operand : {p, half, strided, last}) all.push_back({cat("aten::", unary), {operand}, {t(0)}});
  for (const char* binary : {"mul.Tensor", "div.Tensor", "maximum", "minimum", "pow.Tensor_Tensor", "lt.Tensor",
                             "eq.Tensor", "atan2", "sigmoid_backward", "tanh_backward"}) {
    all.push_back({cat("aten::", binary), {p, y}, {t(0), t(1)}});
    all.push_back({cat("aten::", binary), {strided, y.t().contiguous().t()}, {t(0), t(1)}});
    all.push_back({cat("aten::", binary), {x, v}, {t(0), t(1)}});
  }
  for (const char* scaled : {"add.Tensor", "sub.Tensor"})
    for (const at::Tensor& operand : {x, strided, half})
      all.push_back({cat("aten::", scaled), {operand, y}, {t(0), t(1), d(0.3)}});
  for (const at::Tensor& operand : {x, half, strided, zero_dim})
    for (const char* binary : {"mul.Tensor", "div.Tensor"})
      all.push_back({cat("aten::", binary), {operand}, {t(0), number(0.1)}});
  all.push_back({"aten::pow.Tensor_Scalar", {p}, {t(0), d(1.7)}});
  all.push_back({"aten::clamp", {x}, {t(0), d(-0.5), d(0.5)}});
  all.push_back({"aten::where.self", {mask, x, y}, {t(0), t(1), t(2)}});
  all.push_back({"aten::addcmul", {x, y, p}, {t(0), t(1), t(2), d(0.3)}});
  all.push_back({"aten::lerp.Scalar", {x, y}, {t(0), t(1), d(0.3)}});
  all.push_back({"aten::leaky_relu", {x}, {t(0), d(0.01)}});
  all.push_back({"aten::elu", {x}, {t(0), i(1), i(1), i(1)}});
  all.push_back({"aten::gelu", {x}, {t(0), Arg::string("tanh")}});
  all.push_back({"aten::gelu_backward", {x, y}, {t(0), t(1), Arg::string("none")}});
  all.push_back({"aten::silu_backward", {x, y}, {t(0), t(1)}});
  all.push_back({"aten::threshold_backward", {x, y}, {t(0), t(1), i(0)}});
  all.push_back({"aten::mm", {x, w.t()}, {t(0), t(1)}});
  all.push_back({"aten::addmm", {v, x, w}, {t(0), t(1), t(2), i(1), i(1)}});
  all.push_back({"aten::bmm", {batch, batch2}, {t(0), t(1)}});
  all.push_back({"aten::baddbmm", {at::randn({3, 6, 5}), batch, batch2}, {t(0), t(1), t(2), i(1), d(0.5)}});
  for (const char* reduction : {"sum.dim_IntList", "mean.dim"})
    all.push_back({cat("aten::", reduction), {image}, {t(0), ints({0, 2}), b(true), none()}});
  all.push_back({"aten::sum", {x}, {t(0), none()}});
  all.push_back({"aten::mean", {x}, {t(0), none()}});
  all.push_back({"aten::amax", {x}, {t(0), ints({1}), b(false)}});
  all.push_back({"aten::argmax", {x}, {t(0), i(1), b(false)}});
  all.push_back({"aten::max.dim", {x}, {t(0), i(1), b(false)}});
  all.push_back({"aten::topk", {x}, {t(0), i(3), i(1), b(true), b(true)}});
  all.push_back({"aten::sort", {x}, {t(0), i(1), b(false)}});
  all.push_back({"aten::cumsum", {x}, {t(0), i(1), none()}});
  all.push_back({"aten::var.correction", {x}, {t(0), ints({1}), i(1), b(true)}});
  all.push_back({"aten::linalg_vector_norm", {x}, {t(0), i(2), none(), b(false), none()}});
  all.push_back({"aten::_softmax", {x}, {t(0), i(1), b(false)}});
  all.push_back({"aten::_log_softmax", {x}, {t(0), i(1), b(false)}});
  all.push_back({"aten::_softmax_backward_data", {x, y}, {t(0), t(1), i(1), Arg::integer(6)}});
  all.push_back({"aten::nll_loss_forward", {log_p, classes}, {t(0), t(1), none(), i(1), i(-100)}});
  all.push_back({"aten::nll_loss_backward",
                 {zero_dim, log_p, classes, std::get<1>(nll)},
                 {t(0), t(1), t(2), none(), i(1), i(-100), t(3)}});
  for (const char* loss : {"mse_loss", "binary_cross_entropy_with_logits", "huber_loss", "smooth_l1_loss"}) {
    if (std::string(loss) == "binary_cross_entropy_with_logits")
      all.push_back({cat("aten::", loss), {x, p}, {t(0), t(1), none(), none(), i(1)}});
    else if (std::string(loss) == "mse_loss")
      all.push_back({cat("aten::", loss), {x, y}, {t(0), t(1), i(1)}});
    else
      all.push_back({cat("aten::", loss), {x, y}, {t(0), t(1), i(1), d(1.0)}});
  }
  all.push_back({"aten::mse_loss_backward", {zero_dim, x, y}, {t(0), t(1), t(2), i(1)}});
  all.push_back({"aten::native_layer_norm", {x, v, v}, {t(0), ints({10}), t(1), t(2), d(1e-5)}});
  all.push_back({"aten::native_group_norm", {image}, {t(0), none(), none(), i(2), i(4), i(64), i(2), d(1e-5)}});
  const at::Tensor few = at::randn({2, 7, 8, 8}).narrow(1, 2, 4), of_channels = at::rand({4}) + 0.1;
  for (const at::Tensor& operand : {image, last, few, image.transpose(2, 3), image.slice(3, 0, 8, 2)})
    all.push_back({"aten::native_batch_norm",
                   {operand, of_channels, of_channels},
                   {t(0), t(1), t(2), none(), none(), b(true), d(0.1), d(1e-5)}});
  for (const at::Tensor& operand : {image, last}) {
    all.push_back({"aten::max_pool2d_with_indices",
                   {operand},
                   {t(0), ints({2, 2}), ints({2, 2}), ints({0, 0}), ints({1, 1}), b(false)}});
    all.push_back(
        {"aten::avg_pool2d", {operand}, {t(0), ints({3, 3}), ints({2, 2}), ints({1, 1}), b(false), b(true), none()}});
    all.push_back({"aten::_adaptive_avg_pool2d", {operand}, {t(0), ints({2, 2})}});
    all.push_back({"aten::upsample_nearest2d", {operand}, {t(0), ints({16, 16}), none(), none()}});
    all.push_back({"aten::upsample_bilinear2d", {operand}, {t(0), ints({16, 16}), b(false), none(), none()}});
    all.push_back({"aten::convolution",
                   {operand, at::randn({4, 4, 3, 3})},
                   {t(0), t(1), none(), ints({1, 1}), ints({1, 1}), ints({1, 1}), b(false), ints({0, 0}), i(1)}});
  }
  all.push_back({"aten::max_pool2d_with_indices_backward",
                 {grad_image, image, pool_index},
                 {t(0), t(1), ints({2, 2}), ints({2, 2}), ints({0, 0}), ints({1, 1}), b(false), t(2)}});
  all.push_back({"aten::constant_pad_nd", {x}, {t(0), ints({1, 2}), d(0.5)}});
  all.push_back({"aten::cat", {x, y}, {Arg::idList({0, 1}), i(1)}});
  all.push_back({"aten::stack", {x, y}, {Arg::idList({0, 1}), i(1)}});
  all.push_back({"aten::index_select", {x, rows}, {t(0), i(0), t(1)}});
  all.push_back({"aten::gather", {x, at::randint(10, {6, 3}, at::kLong)}, {t(0), i(1), t(1), b(false)}});
  all.push_back({"aten::scatter_add", {x, at::randint(10, {6, 3}, at::kLong), y}, {t(0), i(1), t(1), t(2)}});
  all.push_back({"aten::index_add", {x, rows, at::randn({4, 10})}, {t(0), i(0), t(1), t(2), i(1)}});
  all.push_back({"aten::masked_fill.Scalar", {x, mask}, {t(0), t(1), d(-1e9)}});
  all.push_back({"aten::embedding", {w, classes}, {t(0), t(1), i(-1), b(false), b(false)}});
  all.push_back({"aten::embedding_dense_backward", {x, classes}, {t(0), t(1), i(10), i(-1), b(false)}});
  all.push_back({"aten::tril", {w}, {t(0), i(0)}});
  all.push_back({"aten::flip", {x}, {t(0), ints({1})}});
  all.push_back({"aten::roll", {x}, {t(0), ints({2}), ints({1})}});
  all.push_back({"aten::repeat", {v}, {t(0), ints({3, 2})}});
  all.push_back({"aten::clone", {strided}, {t(0), none()}});
  all.push_back(
      {"aten::_to_copy", {x}, {t(0), i(static_cast<int>(at::kBFloat16)), none(), none(), none(), b(false), none()}});
  all.push_back({"aten::_to_copy", {strided}, {t(0), none(), none(), none(), none(), b(false), i(0)}});
  all.push_back({"aten::full_like", {strided}, {t(0), d(0.25), none(), none(), none(), none(), none()}});
  all.push_back({"aten::arange.start_step", {}, {i(0), i(10), i(2), none(), none(), none(), none()}});
  return all;
}

class Sweep : public ::testing::TestWithParam<Case> {};

TEST_P(Sweep, SameBitsAsTheFunctionalOperator) {
  const Case& c = GetParam();
  const std::vector<at::Tensor> expected = eager(c);
  Program p;
  std::vector<int32_t> inputs, results;
  for (const at::Tensor& tensor : c.tensors) inputs.push_back(p.input(typeOf(tensor)));
  for (const at::Tensor& tensor : expected) results.push_back(p.value(typeOf(tensor)));
  std::vector<Arg> args = c.args;
  for (Arg& arg : args) {
    if (arg.kind == Arg::Kind::kId) arg.i = inputs[arg.i];
    if (arg.kind == Arg::Kind::kIdList)
      for (int64_t& id : arg.ints) id = inputs[id];
  }
  p.op(c.op, args, results);
  for (const int32_t result : results) p.emit(result);
  Runner runner(p);
  for (int step = 0; step < 3; ++step) {
    const auto actual = runner.step(c.tensors);
    for (std::size_t r = 0; r < expected.size(); ++r) {
      const at::Tensor same = actual[r][0]
                                  .eq(expected[r])
                                  .logical_or(actual[r][0].ne(actual[r][0]).logical_and(expected[r].ne(expected[r])));
      EXPECT_TRUE(same.all().item<bool>()) << "result " << r << " of " << c.op << " in step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, Sweep, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.op.substr(6) + "_" + std::to_string(info.index);
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

}  // namespace
}  // namespace abele::device::testing
