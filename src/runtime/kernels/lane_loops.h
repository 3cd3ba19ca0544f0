// The loops of lane_sums.h and norm_gradients.h; no header of LibTorch, so that a unit for one kind of processor can
// include it. A lane is a micro-batch of those side by side. Strides count elements of float32.
#pragma once

#include <cstdint>

namespace abele::runtime::loops {

/// sum = sum + left[0] right[0] + left[1] right[1] + ..., from left to right; begins: without what was there. An
/// element of a product is one chain of fused multiplications and additions from +0 on, in the order of depth.
struct LaneProducts {
  float* sum = nullptr;  // [rows, columns], contiguous
  int64_t rows = 0, columns = 0, depth = 0, lanes = 0;
  const float* const* left = nullptr;  // by lane, [rows, depth]
  int64_t left_row = 0, left_depth = 0;
  const float* const* right = nullptr;  // by lane, [depth, columns], a row's elements one behind the other
  int64_t right_depth = 0;
  bool begins = false;
};
/// The sum is a grid of these tiles, numbered down its columns.
constexpr int64_t kTileRows = 14, kTileColumns = 32;
constexpr int64_t tilesDown(const LaneProducts& p) { return (p.rows + kTileRows - 1) / kTileRows; }
constexpr int64_t tilesOf(const LaneProducts& p) {
  return tilesDown(p) * ((p.columns + kTileColumns - 1) / kTileColumns);
}

/// The gradients of weight and bias of layer normalisation over contiguous rows: by lane, the sums over its rows. Rows
/// are added up in shares, one for each thread that ATen would use, and then the shares.
struct NormGradients {
  const float *grad = nullptr, *x = nullptr, *mean = nullptr, *scale = nullptr;  // of all lanes, scale: 1 / deviation
  int64_t rows = 0, width = 0;                                                   // of a lane
  int64_t share = 0;                                                             // rows
  float *weight = nullptr, *bias = nullptr;                                      // [lanes, width] or null
};

#if defined(__x86_64__)
struct LaneLoops {
  /// Tiles [begin, end).
  void (*addProducts)(const LaneProducts& products, int64_t begin, int64_t end);
  /// Lanes [begin, end).
  void (*normGradients)(const NormGradients& gradients, int64_t begin, int64_t end);
};
extern const LaneLoops kLaneLoopsAvx512;
#endif

}  // namespace abele::runtime::loops
