#include "kernels/gradient_sums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/basic.h"
#include "kernels/element_loops.h"
#include "kernels/known_trials.h"
#include "kernels/parallel.h"
#include "kernels/products.h"
#include "kernels/scratch.h"

namespace abele::kernels {
namespace {

// A trial compares every element of the sum. Two kernels that round in different orders never agree on all of them.
constexpr int kTrials = 2;
// Elements in a range; fewer are not worth another thread.
constexpr int64_t kSumRange = 32768;
// A product that cannot add to its sum is made in pieces of about this many bytes, and of at least this many rows.
constexpr int64_t kPieceBytes = int64_t{1} << 20, kLeastRows = 32;

int64_t rowsOfPiece(const at::Tensor& sum) {
  const int64_t row_bytes = std::max<int64_t>(1, sum.size(1) * sum.itemsize());
  return std::min(sum.size(0), std::max(kLeastRows, kPieceBytes / row_bytes));
}

// Calls fn(first row, rows).
template <class Fn>
void forEachPiece(const at::Tensor& sum, const Fn& fn) {
  const int64_t rows = sum.size(0), step = rowsOfPiece(sum);
  for (int64_t row = 0; row < rows; row += step) fn(row, std::min(step, rows - row));
}

// Tries products on random numbers, in memory that may be the sum's. Both operands share one piece of memory, so a
// trial needs little memory of its own.
class SumTrial {
 public:
  SumTrial(const at::Tensor& left, const at::Tensor& right, at::Tensor product)
      : operands_(std::max(extentOf(left), extentOf(right)), left.options()),
        left_(operands_.like(left)),
        right_(operands_.like(right)),
        product_(std::move(product)),
        piece_(rowsOfPiece(product_) * product_.size(1), product_.options()),
        term_(rowsOfPiece(product_) * product_.size(1), product_.options()) {}

  ProductWay best() {
    if (addsInOne()) return ProductWay::kInOne;
    const bool is_large = rowsOfPiece(product_) < product_.size(0);
    return is_large && isInPieces() ? ProductWay::kInPieces : ProductWay::kApart;
  }

 private:
  at::Tensor rowsOf(const ScratchMemory& scratch, int64_t rows) const { return scratch.rows(rows, product_.size(1)); }
  int64_t rounds() const { return trialRounds(product_.numel(), left_.numel() + right_.numel(), kTrials); }
  void makeProduct() { at::cpu::mm_out(product_, left_, right_); }
  uint64_t hash() const { return XXH3_64bits(product_.const_data_ptr(), product_.nbytes()); }

  bool addsInOne() {
    for (int64_t i = 0; i < rounds(); ++i) {
      operands_.fill(generator_);
      term_.fill(generator_);
      forEachPiece(product_,
                   [&](int64_t row, int64_t rows) { copyInto(product_.narrow(0, row, rows), rowsOf(term_, rows)); });
      at::cpu::addmm_out(product_, product_, left_, right_, 1, 1);
      const uint64_t in_one = hash();
      makeProduct();
      forEachPiece(product_, [&](int64_t row, int64_t rows) {
        addInto(product_.narrow(0, row, rows), rowsOf(term_, rows), /*first=*/false);
      });
      if (hash() != in_one) return false;
    }
    return true;
  }

  bool isInPieces() {
    bool same = true;
    for (int64_t i = 0; i < rounds() && same; ++i) {
      operands_.fill(generator_);
      makeProduct();
      forEachPiece(product_, [&](int64_t row, int64_t rows) {
        at::Tensor piece = rowsOf(piece_, rows);
        at::cpu::mm_out(piece, left_.narrow(0, row, rows), right_);
        const at::Tensor whole = product_.narrow(0, row, rows);
        same = same && std::memcmp(piece.const_data_ptr(), whole.const_data_ptr(), whole.nbytes()) == 0;
      });
    }
    return same;
  }

  at::Generator generator_ = at::detail::createCPUGenerator(/*seed_val=*/20261123);
  ScratchMemory operands_;
  at::Tensor left_, right_, product_;
  ScratchMemory piece_, term_;
};

// Whether ATen's kernels see the sum as contiguous rows.
bool isDense(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

at::Tensor productOf(const at::Tensor& left, const at::Tensor& right) {
  if (!left.is_cpu()) return at::mm(left, right);
  at::Tensor product = at::empty({left.size(0), right.size(1)}, left.options());
  exactProduct(product, left, right, /*term=*/nullptr);
  return product;
}

// If the processor turns denormal results into zeros, sums may become -0.
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

ProductWay wayOfProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool sum_is_free) {
  if (!isDense(sum) || !left.is_cpu() || !right.is_cpu() || sum.numel() == 0 || left.numel() == 0)
    return ProductWay::kApart;
  std::vector<int64_t> key = {static_cast<int64_t>(sum.scalar_type()), at::get_num_threads()};
  for (const at::Tensor* tensor : {&sum, &left, &right}) addLayout(*tensor, key);
  static auto& known = *new KnownTrials<std::vector<int64_t>, ProductWay>;
  return known.of(key, [&] {
    std::optional<ScratchMemory> room;
    if (!sum_is_free) room.emplace(extentOf(sum), sum.options());
    return SumTrial(left, right, room ? room->like(sum) : sum).best();
  });
}

void ProductSum::add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first) {
  if (reorders_ && sum.is_cpu()) return fastProduct(sum, left, right, /*adds=*/!first);
  at::Tensor to = sum;
  if (!way_) way_ = wayOfProduct(sum, left, right, /*sum_is_free=*/first);
  if (first && isDense(sum)) {
    exactProduct(to, left, right, /*term=*/nullptr);
  } else if (!first && *way_ == ProductWay::kInOne) {
    if (sum.is_cpu())
      addExactProduct(to, left, right);
    else
      at::addmm_out(to, to, left, right, 1, 1);
  } else if (!first && *way_ == ProductWay::kInPieces) {
    forEachPiece(sum, [&](int64_t row, int64_t rows) {
      addInto(sum.narrow(0, row, rows), productOf(left.narrow(0, row, rows), right), /*first=*/false);
    });
  } else {
    addInto(sum, productOf(left, right), first);
  }
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
  const int64_t grain = std::max<int64_t>(1, kSumRange / std::max<int64_t>(1, width));
  shareOut(static_cast<int64_t>(begins_.size()) - 1, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> total;
    for (int64_t r = begin; r < end; ++r) {
      const auto term = [&](int64_t i) { return from + order_[static_cast<std::size_t>(i)].second * width; };
      const int64_t at = begins_[static_cast<std::size_t>(r)], behind = begins_[static_cast<std::size_t>(r) + 1];
      float* const row = to + order_[static_cast<std::size_t>(at)].first * width;
      if (first) {
        for (int64_t i = at; i < behind; ++i) kernels::loops::add(width, row, term(i));
      } else if (behind - at == 1) {
        kernels::loops::add(width, row, term(at));
      } else {
        total.resize(static_cast<std::size_t>(width));
        kernels::loops::addToZero(width, total.data(), term(at));
        for (int64_t i = at + 1; i < behind; ++i) kernels::loops::add(width, total.data(), term(i));
        kernels::loops::add(width, row, total.data());
      }
    }
  });
}

}  // namespace abele::kernels
