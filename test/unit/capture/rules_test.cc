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

TEST(Rules, LazyViewsSeeWhatIsWrittenIntoTheirSource) {
  expectReplayed([](const at::Tensor& x) {
    at::Tensor c = at::fft_fft(x);
    const at::Tensor lazy = c.conj(), negative = at::_neg_view(c), row = c[1].conj();
    c[1].mul_(2);
    return at::cat({at::view_as_real(lazy.resolve_conj()), at::view_as_real(negative.resolve_neg()),
                    at::view_as_real(row.resolve_conj()).unsqueeze(0)});
  });
}

TEST(Rules, SourcesSeeWhatIsWrittenIntoLazyViews) {
  expectReplayed([](const at::Tensor& x) {
    at::Tensor c = at::fft_fft(x);
    const at::Tensor lazy = c.conj(), rest = c.narrow(0, 1, 2).conj(), twice = rest.conj();
    lazy[1].mul_(2);
    twice.select(1, 0).add_(1);
    at::imag(lazy).add_(0.5);
    return at::cat({at::view_as_real(c), at::view_as_real(lazy.resolve_conj()), at::view_as_real(rest.resolve_conj())});
  });
}

TEST(Rules, AViewOfALazyViewThatHasDiedSeesItsSource) {
  expectReplayed([](const at::Tensor& x) {
    at::Tensor c = at::fft_fft(x);
    const at::Tensor twice = c.conj().conj(), part = at::imag(c.conj());
    c.mul_(2);
    return at::real(twice) + part;
  });
}

TEST(Rules, ElementsThatAreOneInMemoryUnderALazyView) {
  expectReplayed([](const at::Tensor& x) {
    const at::Tensor lazy = at::fft_fft(x).select(0, 0).expand({3, 4}).conj();
    lazy[0].mul_(2);
    return at::view_as_real(lazy.resolve_conj());
  });
}

TEST(Rules, LazyViewsAsResults) {
  nn::Linear unused(1, 1);
  auto forward = [](Tensors x) {
    const at::Tensor c = at::fft_fft(x[0]);
    return Tensors{c.conj(), at::imag(c.conj()), c.conj().t()};
  };
  expectCaptured(unused.ptr(), forward, numbers(1), numbers(2), /*training=*/false);
}

TEST(Rules, GradientsOfWritesUnderLazyViews) {
  nn::Linear model(4, 4);
  auto forward = [&](Tensors x) {
    at::Tensor c = at::fft_fft(model->forward(x[0]));
    at::Tensor lazy = c.conj();
    lazy.select(1, 0).mul_(2);
    c.select(0, 1).mul_(3);
    return Tensors{at::abs(lazy * 2 + c).square().sum()};
  };
  expectCaptured(model.ptr(), forward, numbers(1), numbers(2));
}

TEST(Rules, ArgumentsUnderLazyViews) {
  nn::Linear unused(1, 1);
  auto forward = [&](Tensors x) {
    at::Tensor c = at::view_as_complex(x[0].view({3, 2, 2}));
    c.conj().mul_(2);
    return Tensors{at::real(c).clone()};
  };
  expectCaptured(unused.ptr(), forward, numbers(1), numbers(2), /*training=*/false);
}

TEST(Rules, ConstantsThatAreLazyViews) {
  const at::Tensor constant = torch::randn({3, 4}, at::kComplexFloat).conj();
  expectReplayed([&](const at::Tensor& x) { return at::real(constant[1] * x) + at::imag(constant); });
}

// Kernels of products know conjugates. They round in another way if the operands were conjugated before.
TEST(Rules, ProductsOfLazyViews) {
  expectReplayed([](const at::Tensor& x) {
    const at::Tensor a = at::fft_fft(x.repeat({5, 4})), b = at::fft_fft(x.t().repeat({4, 5}).cos());
    at::Tensor sum = at::addmm(at::mm(a.conj(), b), a, b.conj());
    sum.conj().addmm_(b.t().conj(), a.t().conj());
    return at::view_as_real(sum + at::dot(a[0].conj(), a[1]) + at::vdot(a[0], b.select(1, 0).conj()));
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
