#include "kernels/bernoulli.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace abele::kernels {
namespace {

// Draws with both from equal generators, one tensor after the other, and compares the numbers and the generators.
void expectSame(const std::vector<at::Tensor>& like, double p) {
  at::Generator theirs = at::detail::createCPUGenerator(11), ours = theirs.clone();
  for (const at::Tensor& tensor : like) {
    const at::Tensor expected = at::empty_like(tensor), found = at::empty_like(tensor);
    expected.bernoulli_(p, theirs);
    drawBernoulli(found, p, ours);
    EXPECT_TRUE(at::equal(expected, found)) << tensor.sizes() << " " << p;
    EXPECT_TRUE(at::equal(theirs.get_state(), ours.get_state())) << tensor.sizes() << " " << p;
  }
}

TEST(Bernoulli, HasTheBitsAndTheStateOfATen) {
  // The state has 624 words, and an element takes two of them.
  const std::vector<at::Tensor> sizes = {at::empty({1}),   at::empty({310}), at::empty({3, 104}), at::empty({0}),
                                         at::empty({313}), at::empty({}),    at::empty({40, 61})};
  for (const double p : {0.0, 1e-12, 0.1, 0.5, 0.9, 1 - 0x1p-53, 1.0}) expectSame(sizes, p);
}

TEST(Bernoulli, BeginsAnywhereInTheState) {
  at::Generator theirs = at::detail::createCPUGenerator(5), ours = theirs.clone();
  for (int i = 0; i < 700; ++i) {
    const at::Tensor expected = at::empty({2}), found = at::empty({2}), one = at::empty({1});
    one.uniform_(0, 1, theirs);  // takes one number
    one.uniform_(0, 1, ours);
    expected.bernoulli_(0.3, theirs);
    drawBernoulli(found, 0.3, ours);
    ASSERT_TRUE(at::equal(expected, found)) << i;
  }
  EXPECT_TRUE(at::equal(theirs.get_state(), ours.get_state()));
}

TEST(Bernoulli, OtherTypesAndLayoutsAreATens) {
  expectSame({at::empty({7}, at::kDouble), at::empty({7}, at::kBFloat16), at::empty({7}, at::kBool),
              at::empty({5, 6}).t(), at::empty({4, 6, 2, 2}, at::MemoryFormat::ChannelsLast)},
             0.4);
}

TEST(Bernoulli, AProbabilityAboveOneIsRefusedAsByATen) {
  const at::Tensor found = at::full({3}, 2.0);
  EXPECT_THROW(drawBernoulli(found, 1.5, at::detail::createCPUGenerator()), c10::Error);
  EXPECT_TRUE((found == 2.0).all().item<bool>());
}

}  // namespace
}  // namespace abele::kernels
