#include "runtime/kernels/lane_sums.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <cstring>
#include <memory>

#include "base/lane_limits.h"
#include "base/processor_loops.h"
#include "runtime/kernels/basic.h"
#include "runtime/kernels/element_loops.h"
#include "runtime/kernels/known_trials.h"
#include "runtime/kernels/lane_loops.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/scratch.h"

namespace abele::runtime {
namespace {

// Elements, or multiplications, that are worth another thread.
constexpr int64_t kRange = 32768, kProductRange = 1 << 19;

#if defined(__x86_64__)
const loops::LaneLoops* laneLoops() { return processor() == Processor::kAvx512 ? &loops::kLaneLoopsAvx512 : nullptr; }

void run(const loops::LaneLoops& loops, const at::Tensor& sum, const LaneFactors& factors, bool first) {
  const at::Tensor &left = factors.left, &right = factors.right;
  const loops::LaneProducts products{.sum = sum.mutable_data_ptr<float>(),
                                     .rows = sum.size(0),
                                     .columns = sum.size(1),
                                     .depth = left.size(1),
                                     .lanes = static_cast<int64_t>(factors.lefts.size()),
                                     .left = factors.lefts.data(),
                                     .left_row = left.stride(0),
                                     .left_depth = left.stride(1),
                                     .right = factors.rights.data(),
                                     .right_depth = right.stride(0),
                                     .begins = first};
  const int64_t of_tile = loops::kTileRows * loops::kTileColumns * products.depth * products.lanes;
  shareOut(loops::tilesOf(products), (kProductRange + of_tile - 1) / of_tile,
           [&](int64_t begin, int64_t end) { loops.addProducts(products, begin, end); });
}

// Products that are all zeros of one sign tell what a chain starts with.
void addZeros(at::Tensor& left, at::Tensor& right) {
  for (int64_t row = 0; row < left.size(0); row += 5) left.select(0, row).fill_(row % 2 == 0 ? -0.0F : 0.0F);
  for (int64_t column = 0; column < right.size(1); column += 3) right.select(1, column).abs_();
}

bool trial(const loops::LaneLoops& loops, const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
           int64_t lanes) {
  at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/20261125);
  Scratch found(sum), expected(sum);
  std::vector<std::unique_ptr<Scratch>> lefts, rights;
  LaneFactors factors{left, right, {}, {}};
  for (int64_t lane = 0; lane < lanes; ++lane) {
    lefts.push_back(std::make_unique<Scratch>(left));
    rights.push_back(std::make_unique<Scratch>(right));
    factors.lefts.push_back(lefts.back()->tensor().const_data_ptr<float>());
    factors.rights.push_back(rights.back()->tensor().const_data_ptr<float>());
  }
  const int64_t rounds = trialRounds(sum.numel(), lanes * (left.numel() + right.numel()), /*least=*/4);
  for (int64_t i = 0; i < rounds; ++i) {
    const bool first = i % 2 == 0, has_zeros = i % 4 >= 2;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      at::Tensor &a = lefts[lane]->tensor(), &b = rights[lane]->tensor();
      lefts[lane]->fill(generator);
      rights[lane]->fill(generator);
      if (has_zeros) addZeros(a, b);
      if (first && lane == 0)
        at::cpu::mm_out(expected.tensor(), a, b);
      else
        addInto(expected.tensor(), at::mm(a, b), /*first=*/false);
    }
    run(loops, found.tensor(), factors, first);
    if (std::memcmp(found.tensor().const_data_ptr(), expected.tensor().const_data_ptr(), sum.nbytes()) != 0)
      return false;
  }
  return true;
}

bool isFloat(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.scalar_type() == at::kFloat; }
#endif

}  // namespace

void addLanes(const at::Tensor& sum, const std::vector<const float*>& terms, bool first) {
  float* const to = sum.mutable_data_ptr<float>();
  shareOut(sum.numel(), kRange, [&](int64_t begin, int64_t end) {
    std::vector<const float*> from = terms;
    for (const float*& term : from) term += begin;
    loops::addAll(end - begin, to + begin, from.data(), static_cast<int64_t>(from.size()), first);
  });
}

bool multipliesLanes([[maybe_unused]] const at::Tensor& sum, [[maybe_unused]] const at::Tensor& left,
                     [[maybe_unused]] const at::Tensor& right, [[maybe_unused]] int64_t lanes) {
#if defined(__x86_64__)
  const loops::LaneLoops* const loops = laneLoops();
  if (!loops || !isFloat(sum) || !isFloat(left) || !isFloat(right) || !sum.is_contiguous() || sum.numel() == 0 ||
      right.stride(1) != 1 || left.size(1) == 0 || left.size(1) > kMostLaneDepth ||
      sum.numel() * left.size(1) > kMostLaneWork)
    return false;
  std::vector<int64_t> key = {lanes, at::get_num_threads()};
  for (const at::Tensor* tensor : {&sum, &left, &right}) addLayout(*tensor, key);
  static auto& known = *new KnownTrials<std::vector<int64_t>, bool>;
  return known.of(key, [&] { return trial(*loops, sum, left, right, lanes); });
#else
  return false;
#endif
}

void addLaneProducts([[maybe_unused]] const at::Tensor& sum, [[maybe_unused]] const LaneFactors& factors,
                     [[maybe_unused]] bool first) {
#if defined(__x86_64__)
  run(*laneLoops(), sum, factors, first);
#endif
}

}  // namespace abele::runtime
