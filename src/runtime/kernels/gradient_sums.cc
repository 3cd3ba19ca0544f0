#include "runtime/kernels/gradient_sums.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "runtime/kernels/basic.h"
#include "runtime/kernels/element_loops.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/scratch.h"

namespace abele::runtime {
namespace {

// Every element of the sum is compared, each made of its own random numbers; two kernels that round in another order
// agree on all of them never.
constexpr int kTrials = 2;
// Elements that are worth another thread.
constexpr int64_t kRange = 32768;

bool trial(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/20261123);
  Scratch a(left), b(right), in_one(sum), apart(sum);
  for (int i = 0; i < kTrials; ++i) {
    for (Scratch* scratch : {&a, &b, &in_one}) scratch->fill(generator);
    at::cpu::mm_out(apart.tensor(), a.tensor(), b.tensor());
    addInto(apart.tensor(), in_one.tensor(), /*first=*/false);
    at::cpu::addmm_out(in_one.tensor(), in_one.tensor(), a.tensor(), b.tensor(), 1, 1);
    if (std::memcmp(in_one.tensor().const_data_ptr(), apart.tensor().const_data_ptr(), sum.nbytes()) != 0) return false;
  }
  return true;
}

// Sums that ATen's kernels see as rows one behind the other.
bool isDense(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

// Where denormal results become zeros, sums may become -0.
bool flushesDenormals() {
  volatile float least = std::numeric_limits<float>::min();
  return least * 0.5F == 0.0F;
}

template <class Index>
void findRows(const at::Tensor& indices, int64_t rows, int64_t padding,
              std::vector<std::pair<int64_t, int64_t>>& order) {
  const Index* named = indices.const_data_ptr<Index>();
  for (int64_t i = 0; i < indices.numel(); ++i)
    if (named[i] != padding && named[i] >= 0 && named[i] < rows) order.emplace_back(named[i], i);
}

}  // namespace

bool addsInOneProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  if (!isDense(sum) || !left.is_cpu() || !right.is_cpu() || sum.numel() == 0 || left.numel() == 0) return false;
  std::vector<int64_t> key = {static_cast<int64_t>(sum.scalar_type()), at::get_num_threads()};
  for (const at::Tensor* tensor : {&sum, &left, &right}) {
    key.insert(key.end(), tensor->sizes().begin(), tensor->sizes().end());
    key.insert(key.end(), tensor->strides().begin(), tensor->strides().end());
    key.push_back(misalignment(*tensor));
  }
  static std::mutex mutex;
  static auto& known = *new std::map<std::vector<int64_t>, bool>;  // models of static lifetime outlive it otherwise
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  // Outside of the lock: others need not wait, and who tries the same finds the same.
  const bool same = trial(sum, left, right);
  const std::lock_guard<std::mutex> lock(mutex);
  return known[std::move(key)] = same;
}

void ProductSum::add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first) {
  at::Tensor to = sum;
  if (first && isDense(sum)) {
    at::cpu::mm_out(to, left, right);
    return;
  }
  if (!first && reorders_) {
    if (sum.is_cpu())
      at::cpu::addmm_out(to, to, left, right, 1, 1);
    else
      at::addmm_out(to, to, left, right, 1, 1);
    return;
  }
  if (!first && !in_one_) in_one_ = addsInOneProduct(sum, left, right);
  if (!first && *in_one_)
    at::cpu::addmm_out(to, to, left, right, 1, 1);
  else
    addInto(sum, at::mm(left, right), first);
}

void RowSum::add(const at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& indices, int64_t padding,
                 bool first) {
  const int64_t rows = sum.size(0), width = sum.size(1);
  if (!isDense(sum) || !isDense(gradient) || !isDense(indices) || flushesDenormals()) {
    addInto(sum, at::embedding_dense_backward(gradient, indices, rows, padding, /*scale_grad_by_freq=*/false), first);
    return;
  }
  order_.clear();
  begins_.clear();
  if (indices.scalar_type() == at::kInt)
    findRows<int32_t>(indices, rows, padding, order_);
  else
    findRows<int64_t>(indices, rows, padding, order_);
  std::sort(order_.begin(), order_.end());
  for (std::size_t i = 0; i < order_.size(); ++i)
    if (i == 0 || order_[i].first != order_[i - 1].first) begins_.push_back(static_cast<int64_t>(i));
  begins_.push_back(static_cast<int64_t>(order_.size()));
  if (first) fillZero(sum);
  float* const to = sum.mutable_data_ptr<float>();
  const float* const from = gradient.const_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kRange / std::max<int64_t>(1, width));
  shareOut(static_cast<int64_t>(begins_.size()) - 1, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> total;
    for (int64_t r = begin; r < end; ++r) {
      const auto term = [&](int64_t i) { return from + order_[static_cast<std::size_t>(i)].second * width; };
      const int64_t at = begins_[static_cast<std::size_t>(r)], behind = begins_[static_cast<std::size_t>(r) + 1];
      float* const row = to + order_[static_cast<std::size_t>(at)].first * width;
      if (first) {
        for (int64_t i = at; i < behind; ++i) loops::add(width, row, term(i));
      } else if (behind - at == 1) {
        loops::add(width, row, term(at));
      } else {
        total.resize(static_cast<std::size_t>(width));
        loops::addToZero(width, total.data(), term(at));
        for (int64_t i = at + 1; i < behind; ++i) loops::add(width, total.data(), term(i));
        loops::add(width, row, total.data());
      }
    }
  });
}

}  // namespace abele::runtime
