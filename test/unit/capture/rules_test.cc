// Operators that are recorded in another form: lazy views, filled memory, torch's choices that depend on a mode.
#include "fixture.h"

namespace abele::capture {
namespace {

namespace nn = torch::nn;

Tensors numbers(uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({3, 4})};
}

void expectReplayed(const std::function<at::Tensor(at::Tensor)>& fn) {
  nn::Linear unused(1, 1);
  expectCaptured(
      unused.ptr(), [&](Tensors x) { return Tensors{fn(x[0])}; }, numbers(1), numbers(2), /*training=*/false);
}

void expectRefused(ErrorCode code, const std::string& text, const std::function<at::Tensor(at::Tensor)>& fn) {
  Request request;
  request.arguments = numbers(1);
  request.forward = [&](Tensors x) { return Tensors{fn(x[0])}; };
  try {
    capture(request);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(Rules, ConjugatesAndNegativesAreComputed) {
  expectReplayed([](const at::Tensor& x) { return at::real(at::fft_fft(x).conj() * 2); });
  expectReplayed([](const at::Tensor& x) { return at::imag(at::fft_fft(x).conj()).clone(); });
  expectReplayed([](const at::Tensor& x) { return at::fft_ihfft(x).abs(); });
}

TEST(Rules, WritingUnderALazyConjugateIsAnError) {
  expectRefused(ErrorCode::E0106, "conjugated", [](const at::Tensor& x) {
    at::Tensor c = at::fft_fft(x);
    const at::Tensor lazy = c.conj();
    c.mul_(2);
    return at::real(lazy);
  });
}

TEST(Rules, MemoryFilledBehindTheDispatcher) {
  expectReplayed([](const at::Tensor& x) {
    at::Tensor filled = at::empty({4});
    for (int i = 0; i < 4; ++i) filled.data_ptr<float>()[i] = static_cast<float>(i);
    return x * filled + filled[2];
  });
}

TEST(Rules, ValuesWithoutVectorsAsInEager) {
  expectReplayed([](const at::Tensor& x) { return at::linalg_svdvals(x); });
  expectReplayed([](const at::Tensor& x) { return at::linalg_eigvalsh(at::matmul(x, x.t())); });
  expectReplayed([](const at::Tensor& x) { return at::linalg_matrix_norm(x, "nuc"); });
}

TEST(Rules, SingularValuesAreDifferentiated) {
  nn::Linear model(4, 4);
  auto forward = [&](Tensors x) { return Tensors{at::linalg_svdvals(model->forward(x[0])).square().sum()}; };
  expectCaptured(model.ptr(), forward, numbers(1), numbers(2));
}

TEST(Rules, ResizedToTheShapeOfAnother) {
  expectReplayed([](const at::Tensor& x) {
    at::Tensor y = at::empty({0});
    y.resize_as_(x);
    y.copy_(x);
    return y + 1;
  });
}

TEST(Rules, ViewsWithoutElementsMayLieBehindTheEnd) {
  expectReplayed([](const at::Tensor& x) {
    const at::Tensor none = at::arange(6).reshape({3, 2}).narrow(0, 3, 0);
    return x + none.select(1, 1).sum();
  });
}

TEST(Rules, ShapesThatDependOnValuesAreErrors) {
  expectRefused(ErrorCode::E0101, "another shape", [](const at::Tensor& x) { return x.nonzero(); });
  expectRefused(ErrorCode::E0101, "another shape", [](const at::Tensor& x) { return at::masked_select(x, x > 0); });
  expectReplayed([](const at::Tensor& x) { return at::masked_select(x, at::arange(4) > 1); });
}

}  // namespace
}  // namespace abele::capture
