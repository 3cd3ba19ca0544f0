#include "kernels/convolutions.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "kernels/known_trials.h"
#include "kernels/parallel.h"
#include "kernels/products.h"

namespace abele::kernels {
namespace {

constexpr int kTimings = 3;                     // for each way; the shortest counts, and the first prepares it
constexpr int64_t kColumnElements = 1 << 20;    // elements of a matrix of patches; more would not stay in the cache
constexpr int64_t kMostElements = 1 << 23;      // if one image needs more, its memory matters and ATen computes it
constexpr int64_t kElementsOfThread = 1 << 14;  // fewer are not worth another thread

// A convolution over some of the images. A matrix of patches has a row for each channel and place of the weight, and a
// column for each image and place of the result.
struct Convolution {
  Convolution(const at::Tensor& images, const at::Tensor& weight, const Steps& steps)
      : count(images.size(0)), channels(images.size(1)), made(weight.size(0)) {
    ABELE_CHECK(images.dim() == 4 && weight.dim() == 4 && weight.size(1) == channels, "no weight for ", channels,
                " channels");
    for (size_t d = 0; d < 2; ++d)
      axes[d] = {images.sizes()[d + 2], weight.sizes()[d + 2], steps.stride[d], steps.padding[d], steps.dilation[d]};
  }

  struct Axis {
    int64_t size = 0, taps = 0, stride = 1, padding = 0, dilation = 1;
    bool isPointwise() const { return taps == 1 && stride == 1 && padding == 0; }
    int64_t places() const { return (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1; }
    /// The element that a tap reads at a place.
    int64_t at(int64_t place, int64_t tap) const { return place * stride - padding + tap * dilation; }
    /// The first place at which the tap reads an element that is not before `element`.
    int64_t firstPlace(int64_t element, int64_t tap) const {
      return std::clamp<int64_t>((element - at(0, tap) + stride - 1) / stride, 0, places());
    }
  };
  int64_t count, channels, made;  // images, and channels of the images and of the result
  Axis axes[2];

  /// Elements of a channel of the result.
  int64_t places() const { return axes[0].places() * axes[1].places(); }
  int64_t rows() const { return channels * axes[0].taps * axes[1].taps; }
  /// True if the channels of an image are the rows of its matrix.
  bool isPointwise() const { return axes[0].isPointwise() && axes[1].isPointwise(); }
  /// Elements of the matrix of one image.
  int64_t elements() const { return rows() * places(); }
  int64_t imagesAtOnce() const {
    return std::clamp<int64_t>(kColumnElements / std::max<int64_t>(elements(), 1), 1, count);
  }
};

// Calls move(column, element, count, stride) for the elements of these channels that have a place in the matrix:
// `count` of them from this element of the images on, whose columns follow one another.
template <class Move>
void forEachRun(const Convolution& c, int64_t images, int64_t begin, int64_t end, const Move& move) {
  const auto& [height, width] = c.axes;
  int64_t row = begin * height.taps * width.taps;
  for (int64_t channel = begin; channel < end; ++channel)
    for (int64_t tap_y = 0; tap_y < height.taps; ++tap_y)
      for (int64_t tap_x = 0; tap_x < width.taps; ++tap_x, ++row) {
        const int64_t first = width.firstPlace(0, tap_x), last = width.firstPlace(width.size, tap_x);
        for (int64_t image = 0; image < images && first < last; ++image)
          for (int64_t y = height.firstPlace(0, tap_y); y < height.firstPlace(height.size, tap_y); ++y)
            move(((row * images + image) * height.places() + y) * width.places() + first,
                 ((image * c.channels + channel) * height.size + height.at(y, tap_y)) * width.size +
                     width.at(first, tap_x),
                 last - first, width.stride);
      }
}

void shareChannels(const Convolution& c, int64_t images, const std::function<void(int64_t, int64_t)>& fn) {
  const int64_t elements = c.rows() / c.channels * c.places() * images;
  shareOut(c.channels, std::max<int64_t>(1, kElementsOfThread / elements), fn);
}

// [N, C, places] as a matrix [C, N * places], in other memory only if N > 1.
at::Tensor joined(const at::Tensor& images) {
  const at::Tensor channels_first = images.flatten(2).transpose(0, 1);
  return channels_first.reshape({images.size(1), -1});
}

void separate(const at::Tensor& joined, at::Tensor images) {
  images.copy_(joined.view({images.size(1), images.size(0), images.size(2), images.size(3)}).transpose(0, 1));
}

at::Tensor patches(const at::Tensor& images, const Convolution& c) {
  if (c.isPointwise()) return joined(images);
  const int64_t count = images.size(0);
  const at::Tensor matrix = at::zeros({c.rows(), count * c.places()}, images.options());
  auto* const to = matrix.mutable_data_ptr<float>();
  const auto* const from = images.const_data_ptr<float>();
  shareChannels(c, count, [&](int64_t begin, int64_t end) {
    forEachRun(c, count, begin, end, [&](int64_t column, int64_t element, int64_t n, int64_t stride) {
      for (int64_t i = 0; i < n; ++i) to[column + i] = from[element + i * stride];
    });
  });
  return matrix;
}

// Adds the elements of a matrix of patches to the elements of the images that they are copies of.
void addPatches(const at::Tensor& matrix, const at::Tensor& images, const Convolution& c) {
  const int64_t count = images.size(0);
  auto* const to = images.mutable_data_ptr<float>();
  const auto* const from = matrix.const_data_ptr<float>();
  shareChannels(c, count, [&](int64_t begin, int64_t end) {
    forEachRun(c, count, begin, end, [&](int64_t column, int64_t element, int64_t n, int64_t stride) {
      for (int64_t i = 0; i < n; ++i) to[element + i * stride] += from[column + i];
    });
  });
}

// Calls fn(first, count) for parts of the images.
template <class Fn>
void forEachPart(const Convolution& c, const Fn& fn) {
  const int64_t most = c.imagesAtOnce();
  for (int64_t first = 0; first < c.count; first += most) fn(first, std::min(most, c.count - first));
}

// Writes left.mm(right) to images, whose channels are the rows of the product.
void productInto(const at::Tensor& images, const at::Tensor& left, const at::Tensor& right) {
  if (images.size(0) == 1) {
    fastProduct(images.view({images.size(1), -1}), left, right, /*adds=*/false);
    return;
  }
  const at::Tensor product = at::empty({left.size(0), right.size(1)}, images.options());
  fastProduct(product, left, right, /*adds=*/false);
  separate(product, images);
}

using Way = std::function<at::Tensor()>;

int64_t timeOf(const Way& way) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kTimings; ++i) least = leastNs(least, way);
  return least;
}

enum class Result : uint8_t { kImages, kImageGradient, kWeightGradient };

at::Tensor fasterOf(Result result, const at::Tensor& images, const at::Tensor& weight, const Steps& steps,
                    const Way& aten, const Way& products) {
  static auto& known = *new KnownTrials<std::vector<int64_t>, bool>;
  std::vector<int64_t> key = {static_cast<int64_t>(result), at::get_num_threads()};
  for (const at::IntArrayRef numbers : {images.sizes(), weight.sizes(), steps.stride, steps.padding, steps.dilation})
    key.insert(key.end(), numbers.begin(), numbers.end());
  const Convolution c(images, weight, steps);
  if (images.numel() == 0 || weight.numel() == 0 || c.elements() > kMostElements) return aten();
  const bool by_products = known.of(key, [&] { return isClearlyLess(timeOf(products), timeOf(aten)); });
  return by_products ? products() : aten();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradientsOfATen(const at::Tensor& grad, const at::Tensor& images,
                                                               const at::Tensor& weight, const Steps& steps,
                                                               std::array<bool, 3> wanted) {
  return at::convolution_backward(grad, images, weight, at::OptionalIntArrayRef(), steps.stride, steps.padding,
                                  steps.dilation, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
}

}  // namespace

at::Tensor convolutionByProducts(const at::Tensor& images, const at::Tensor& weight, const Steps& steps) {
  const Convolution c(images, weight, steps);
  const at::Tensor filters = weight.view({c.made, c.rows()});
  const at::Tensor out = at::empty({c.count, c.made, c.axes[0].places(), c.axes[1].places()}, images.options());
  forEachPart(c, [&](int64_t first, int64_t count) {
    productInto(out.narrow(0, first, count), filters, patches(images.narrow(0, first, count), c));
  });
  return out;
}

at::Tensor imageGradientByProducts(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                                   const Steps& steps) {
  const Convolution c(images, weight, steps);
  const at::Tensor filters = weight.view({c.made, c.rows()}).t();
  const at::Tensor out = c.isPointwise() ? at::empty_like(images) : at::zeros_like(images);
  forEachPart(c, [&](int64_t first, int64_t count) {
    const at::Tensor part = out.narrow(0, first, count), gradients = joined(grad.narrow(0, first, count));
    if (c.isPointwise()) return productInto(part, filters, gradients);
    const at::Tensor matrix = at::empty({c.rows(), gradients.size(1)}, out.options());
    fastProduct(matrix, filters, gradients, /*adds=*/false);
    addPatches(matrix, part, c);
  });
  return out;
}

at::Tensor weightGradientByProducts(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                                    const Steps& steps) {
  const Convolution c(images, weight, steps);
  const at::Tensor out = at::empty_like(weight), filters = out.view({c.made, c.rows()});
  forEachPart(c, [&](int64_t first, int64_t count) {
    fastProduct(filters, joined(grad.narrow(0, first, count)), patches(images.narrow(0, first, count), c).t(),
                /*adds=*/first > 0);
  });
  return out;
}

at::Tensor fastConvolution(const at::Tensor& images, const at::Tensor& weight, const Steps& steps) {
  return fasterOf(
      Result::kImages, images, weight, steps,
      [&] {
        return at::convolution(images, weight, {}, steps.stride, steps.padding, steps.dilation, /*transposed=*/false,
                               {0, 0}, /*groups=*/1);
      },
      [&] { return convolutionByProducts(images, weight, steps); });
}

at::Tensor fastImageGradient(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                             const Steps& steps) {
  return fasterOf(
      Result::kImageGradient, images, weight, steps,
      [&] { return std::get<0>(gradientsOfATen(grad, images, weight, steps, {true, false, false})); },
      [&] { return imageGradientByProducts(grad, images, weight, steps); });
}

at::Tensor fastWeightGradient(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                              const Steps& steps) {
  return fasterOf(
      Result::kWeightGradient, images, weight, steps,
      [&] { return std::get<1>(gradientsOfATen(grad, images, weight, steps, {false, true, false})); },
      [&] { return weightGradientByProducts(grad, images, weight, steps); });
}

}  // namespace abele::kernels
