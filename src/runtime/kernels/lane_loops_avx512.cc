// The loops of lane_loops.h for processors with AVX-512. Includes nothing whose inline functions others share, because
// it is compiled for these processors alone.
#include "base/lane_limits.h"
#include "runtime/kernels/lane_loops.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace abele::runtime::loops {
namespace {

constexpr int64_t kWidth = 16;  // of a register
constexpr int kVectors = kTileColumns / kWidth;

// The first so many elements of a register.
inline __mmask16 first(int64_t count) {
  if (count <= 0) return 0;
  return static_cast<__mmask16>(count >= kWidth ? 0xFFFFU : (1U << count) - 1U);
}

// The columns of a tile, of some lanes one behind the other: rows of a wide matrix lie in few sets of the first-level
// cache.
struct Panel {
  static constexpr int64_t kRows = kMostLaneDepth;
  alignas(64) float rows[kRows * kTileColumns];

  void load(const LaneProducts& p, int64_t column, int64_t lane, int64_t lanes) {
    const __mmask16 lower = first(p.columns - column), upper = first(p.columns - column - kWidth);
    float* to = rows;
    for (int64_t end = lane + lanes; lane < end; ++lane) {
      const float* from = p.right[lane] + column;
      for (int64_t k = 0; k < p.depth; ++k, from += p.right_depth, to += kTileColumns) {
        _mm512_store_ps(to, _mm512_maskz_loadu_ps(lower, from));
        _mm512_store_ps(to + kWidth, _mm512_maskz_loadu_ps(upper, from + kWidth));
      }
    }
  }
};

// Rows of a tile, for some lanes: the chains of a lane stay in registers, the sum in the first-level cache.
// kTransposed: the rows of `left` are columns of memory, as autograd has them; addresses are then constants.
template <bool kTransposed, int kRows>
void addTile(const LaneProducts& p, int64_t row, int64_t column, int64_t lane, int64_t lanes, const float* right) {
  const __mmask16 lower = first(p.columns - column), upper = first(p.columns - column - kWidth);
  float* const to = p.sum + row * p.columns + column;
  for (int64_t end = lane + lanes; lane < end; ++lane) {
    __m512 chain[kRows][kVectors];
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) chain[r][0] = chain[r][1] = _mm512_setzero_ps();
    const float* left = p.left[lane] + row * p.left_row;
    for (int64_t k = 0; k < p.depth; ++k, left += p.left_depth, right += kTileColumns) {
      const __m512 a = _mm512_load_ps(right), b = _mm512_load_ps(right + kWidth);
#pragma GCC unroll 14
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(left[kTransposed ? r : r * p.left_row]);
        chain[r][0] = _mm512_fmadd_ps(factor, a, chain[r][0]);
        chain[r][1] = _mm512_fmadd_ps(factor, b, chain[r][1]);
      }
    }
    const bool begins = p.begins && lane == 0;
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      float* const at = to + r * p.columns;
      if (!begins) {
        chain[r][0] = _mm512_add_ps(_mm512_maskz_loadu_ps(lower, at), chain[r][0]);
        chain[r][1] = _mm512_add_ps(_mm512_maskz_loadu_ps(upper, at + kWidth), chain[r][1]);
      }
      _mm512_mask_storeu_ps(at, lower, chain[r][0]);
      _mm512_mask_storeu_ps(at + kWidth, upper, chain[r][1]);
    }
  }
}

using Tile = void (*)(const LaneProducts&, int64_t, int64_t, int64_t, int64_t, const float*);
template <bool kTransposed>
struct Tiles {
  Tile of_rows[kTileRows] = {addTile<kTransposed, 1>,  addTile<kTransposed, 2>,  addTile<kTransposed, 3>,
                             addTile<kTransposed, 4>,  addTile<kTransposed, 5>,  addTile<kTransposed, 6>,
                             addTile<kTransposed, 7>,  addTile<kTransposed, 8>,  addTile<kTransposed, 9>,
                             addTile<kTransposed, 10>, addTile<kTransposed, 11>, addTile<kTransposed, 12>,
                             addTile<kTransposed, 13>, addTile<kTransposed, 14>};
};
template <bool kTransposed>
constexpr Tiles<kTransposed> kTiles;

void addProducts(const LaneProducts& p, int64_t begin, int64_t end) {
  const Tile* const by_rows = p.left_row == 1 ? kTiles<true>.of_rows : kTiles<false>.of_rows;
  Panel panel;
  const int64_t down = tilesDown(p), most_lanes = Panel::kRows / p.depth;
  while (begin < end) {
    const int64_t column = begin / down * kTileColumns, last = (begin / down + 1) * down;
    const int64_t behind = last < end ? last : end;
    for (int64_t lane = 0; lane < p.lanes; lane += most_lanes) {
      const int64_t lanes = p.lanes - lane < most_lanes ? p.lanes - lane : most_lanes;
      panel.load(p, column, lane, lanes);
      for (int64_t tile = begin; tile < behind; ++tile) {
        const int64_t row = tile % down * kTileRows;
        const int64_t rows = p.rows - row < kTileRows ? p.rows - row : kTileRows;
        by_rows[rows - 1](p, row, column, lane, lanes, panel.rows);
      }
    }
    begin = behind;
  }
}

// As ATen compiles it: of `a * x + b` and `sum + grad * that`, each is one fused operation.
void normGradients(const NormGradients& g, int64_t begin, int64_t end) {
  for (int64_t lane = begin; lane < end; ++lane)
    for (int64_t column = 0; column < g.width; column += kWidth) {
      const __mmask16 elements = first(g.width - column);
      __m512 weight = _mm512_setzero_ps(), bias = _mm512_setzero_ps();
      const int64_t behind = (lane + 1) * g.rows;
      for (int64_t share = lane * g.rows; share < behind; share += g.share) {
        const int64_t share_end = share + g.share < behind ? share + g.share : behind;
        __m512 part_of_weight = _mm512_setzero_ps(), part_of_bias = _mm512_setzero_ps();
        for (int64_t row = share; row < share_end; ++row) {
          const __m512 grad = _mm512_maskz_loadu_ps(elements, g.grad + row * g.width + column);
          const __m512 x = _mm512_maskz_loadu_ps(elements, g.x + row * g.width + column);
          const float a = g.scale[row], b = -a * g.mean[row];
          const __m512 normal = _mm512_fmadd_ps(_mm512_set1_ps(a), x, _mm512_set1_ps(b));
          part_of_weight = _mm512_fmadd_ps(grad, normal, part_of_weight);
          part_of_bias = _mm512_add_ps(part_of_bias, grad);
        }
        weight = _mm512_add_ps(weight, part_of_weight);
        bias = _mm512_add_ps(bias, part_of_bias);
      }
      if (g.weight) _mm512_mask_storeu_ps(g.weight + lane * g.width + column, elements, weight);
      if (g.bias) _mm512_mask_storeu_ps(g.bias + lane * g.width + column, elements, bias);
    }
}

}  // namespace

const LaneLoops kLaneLoopsAvx512 = {addProducts, normGradients};

}  // namespace abele::runtime::loops
#endif
