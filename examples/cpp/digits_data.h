// The handwritten digits of examples/data, and an order of samples: the C++ twin of digits_data.py.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace digits {

constexpr int64_t kImages = 1797;
constexpr int64_t kPixels = 64;

/// Shapes: images float32 [n, 1, 8, 8]; labels int64 [n].
struct Part {
  torch::Tensor images;
  torch::Tensor labels;
};
struct Split {
  Part train;
  Part test;
};

/// Every fifth record is held out for testing. Pixels have mean 0 and standard deviation 1 over the training part.
inline Split load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> raw((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (static_cast<int64_t>(raw.size()) != kImages * (kPixels + 1)) {
    throw std::runtime_error(path + ": expected " + std::to_string(kImages * (kPixels + 1)) + " bytes, found " +
                             std::to_string(raw.size()));
  }
  const auto pixels = [&](int64_t record) { return raw.data() + record * (kPixels + 1); };
  const auto is_test = [](int64_t record) { return record % 5 == 4; };

  // In integers, so that every language gets the same mean and deviation.
  int64_t count = 0, total = 0, squares = 0;
  for (int64_t record = 0; record < kImages; ++record) {
    for (int64_t i = 0; !is_test(record) && i < kPixels; ++i) {
      const int64_t pixel = pixels(record)[i];
      ++count, total += pixel, squares += pixel * pixel;
    }
  }
  const double mean = static_cast<double>(total) / count;
  const double deviation = std::sqrt(static_cast<double>(count * squares - total * total)) / count;

  const auto tensors = [&](bool test) {
    std::vector<float> images;
    std::vector<int64_t> labels;
    for (int64_t record = 0; record < kImages; ++record) {
      if (is_test(record) != test) continue;
      for (int64_t i = 0; i < kPixels; ++i) {
        images.push_back(static_cast<float>((pixels(record)[i] - mean) / deviation));
      }
      labels.push_back(pixels(record)[kPixels]);
    }
    return Part{torch::tensor(images).view({-1, 1, 8, 8}), torch::tensor(labels)};
  };
  return {tensors(false), tensors(true)};
}

/// A new order of n samples at each call, shuffling the one before. Source: Fisher and Yates; the generator is Knuth's
/// 64-bit linear congruential one.
class Shuffled {
 public:
  Shuffled(int64_t n, uint64_t seed) : order_(n), state_(seed) { std::iota(order_.begin(), order_.end(), 0); }

  const std::vector<int64_t>& next() {
    for (size_t last = order_.size() - 1; last > 0; --last) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      std::swap(order_[last], order_[(state_ >> 33) % (last + 1)]);
    }
    return order_;
  }

 private:
  std::vector<int64_t> order_;
  uint64_t state_;
};

}  // namespace digits
