// For users of the library: batches of the size that one call of a model takes. Read options.h first.
//
//   abele::DataLoader loader(options, {images, labels}, {.batch_size = 16, .shuffle = true});
//   for (const auto& batch : loader) model(batch);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "abele/export.h"
#include "abele/options.h"

namespace at {
class Tensor;
}

namespace abele {

struct DataLoaderOptions {
  int64_t batch_size = 1;  // of a micro-batch
  bool shuffle = false;    // a new order at each pass, the same for the same seed
  uint64_t seed = 0;
  bool drop_last = true;  // leave out the samples that do not fill a batch; a model takes full batches only
};

/// Combines micro-batches: each batch has batch_size * deviceIterations * gradientAccumulation samples on dim 0.
/// Threads: owner only. Source: spec data.md section 1.
class ABELE_API DataLoader {
 public:
  /// Samples are the rows (dim 0) of these tensors, which must have equal numbers of them (E0801).
  DataLoader(const Options& options, std::vector<at::Tensor> tensors, const DataLoaderOptions& loading);
  /// sample(i) gives sample i of `count` as tensors without a batch dimension, alike in shape and type (E0801).
  DataLoader(const Options& options, std::function<std::vector<at::Tensor>(int64_t)> sample, int64_t count,
             const DataLoaderOptions& loading);
  DataLoader(DataLoader&&) noexcept;
  ~DataLoader();

  int64_t combinedBatchSize() const;
  /// Batches of one pass.
  int64_t size() const;

  /// The next batch of this pass; false at its end.
  bool next(std::vector<at::Tensor>& batch);
  /// Starts a pass, in a new order when shuffling.
  void reset();

  /// One pass, for range-based for; begin() calls reset(). A batch is valid until the next one.
  class ABELE_API Iterator {
   public:
    const std::vector<at::Tensor>& operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const { return loader_ != other.loader_; }

   private:
    friend class DataLoader;
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    DataLoader* loader_;
  };
  Iterator begin();
  Iterator end() { return Iterator(nullptr); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele
