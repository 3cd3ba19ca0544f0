// CTC prefix beam search. Source: Graves 2012, sec. 7.5; Hannun et al. 2014, algorithm 1 (without a language model).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "abele/ops.h"
#include "base/error.h"
#include "operators/library.h"

namespace abele {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double logAdd(double a, double b) {
  if (a == kNever) return b;
  if (b == kNever) return a;
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

/// Log-probability of a prefix, separately for paths that end in a blank and paths that do not.
struct Score {
  double blank = kNever;
  double symbol = kNever;
  double total() const { return logAdd(blank, symbol); }
};

using Prefix = std::vector<int32_t>;
using Beam = std::vector<std::pair<Prefix, Score>>;

/// The beam after one more time step; log_C: log-probabilities of the classes.
Beam extended(const Beam& beam, const double* log_C, int64_t num_classes, int64_t blank, size_t width) {
  std::map<Prefix, Score> next;
  for (const auto& [prefix, score] : beam) {
    Score& same = next[prefix];
    same.blank = logAdd(same.blank, score.total() + log_C[blank]);
    if (!prefix.empty()) same.symbol = logAdd(same.symbol, score.symbol + log_C[prefix.back()]);
    for (int32_t c = 0; c < num_classes; ++c) {
      if (c == blank) continue;
      Prefix longer = prefix;
      longer.push_back(c);
      // A repeated symbol is a new one only after a blank.
      const double from = !prefix.empty() && prefix.back() == c ? score.blank : score.total();
      Score& grown = next[longer];
      grown.symbol = logAdd(grown.symbol, from + log_C[c]);
    }
  }
  Beam all(next.begin(), next.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second.total() > b.second.total(); });
  if (all.size() > width) all.resize(width);
  return all;
}

using BeamSignature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t,
                                                                     int64_t, int64_t);

}  // namespace

namespace operators {

std::tuple<at::Tensor, at::Tensor, at::Tensor> beamSearchKernel(const at::Tensor& probs_TNC,
                                                                const at::Tensor& lengths_N, int64_t blank,
                                                                int64_t beam_width, int64_t top_paths) {
  const int64_t T = probs_TNC.size(0), N = probs_TNC.size(1), C = probs_TNC.size(2);
  const at::Tensor logs = probs_TNC.to(at::kDouble).contiguous();
  const at::Tensor lengths = lengths_N.to(at::kLong).contiguous();
  at::Tensor path_logs = at::full({N, top_paths}, kNever, at::kDouble);
  at::Tensor path_lengths = at::zeros({N, top_paths}, at::kInt);
  at::Tensor paths = at::zeros({N, top_paths, T}, at::kInt);
  for (int64_t n = 0; n < N; ++n) {
    Beam beam{{Prefix(), Score{.blank = 0}}};
    const int64_t steps = std::clamp<int64_t>(lengths.const_data_ptr<int64_t>()[n], 0, T);
    for (int64_t t = 0; t < steps; ++t)
      beam = extended(beam, logs.const_data_ptr<double>() + (t * N + n) * C, C, blank, beam_width);
    for (int64_t p = 0; p < std::min<int64_t>(top_paths, beam.size()); ++p) {
      const auto& [prefix, score] = beam[p];
      path_logs.mutable_data_ptr<double>()[n * top_paths + p] = score.total();
      path_lengths.mutable_data_ptr<int32_t>()[n * top_paths + p] = static_cast<int32_t>(prefix.size());
      std::copy(prefix.begin(), prefix.end(), paths.mutable_data_ptr<int32_t>() + (n * top_paths + p) * T);
    }
  }
  return {path_logs.to(probs_TNC.scalar_type()), path_lengths, paths};
}

}  // namespace operators

namespace ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> ctcBeamSearchDecoder(const at::Tensor& probs, const at::Tensor& lengths,
                                                                    int64_t blank, int64_t beam_width,
                                                                    int64_t top_paths) {
  ABELE_REQUIRE(probs.dim() == 3, E0708,
                {.what = cat("ctc_beam_search_decoder: probs has rank ", probs.dim()), .expected = "[T, N, C]"});
  ABELE_REQUIRE(lengths.dim() == 1 && lengths.size(0) == probs.size(1), E0708,
                {.what = cat("ctc_beam_search_decoder: ", lengths.numel(), " lengths"),
                 .expected = cat("one for each of ", probs.size(1), " sequences")});
  ABELE_REQUIRE(blank >= 0 && blank < probs.size(2) && top_paths >= 1 && beam_width >= top_paths, E0708,
                {.what = "ctc_beam_search_decoder: a blank, beam_width or top_paths out of range",
                 .found = cat(blank, ", ", beam_width, ", ", top_paths),
                 .expected = cat("0 <= blank < ", probs.size(2), ", 1 <= top_paths <= beam_width")});
  return operators::operatorOf<BeamSignature>("abele_op::ctc_beam_search")
      .call(probs.detach(), lengths, blank, beam_width, top_paths);
}

}  // namespace ops
}  // namespace abele
