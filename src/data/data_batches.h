// For DataLoader: the sources of a pass's batches.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "abele/data_loader.h"

namespace abele::data {

using Batch = std::vector<at::Tensor>;

/// Passes of batches. Threads: one caller at a time.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual void startPass() = 0;
  /// Moves to the state after this many passes and batches.
  virtual void seek(const LoaderPosition& position) = 0;
  /// Returns false at the end of the pass.
  virtual bool next(Batch& batch) = 0;
  virtual int64_t size() const = 0;
};

/// The samples: rows of tensors or of files, or results of a function. Exactly one of the three fields is set.
struct SampleSource {
  Batch tensors;                                                // the rows of these
  std::function<Batch(int64_t index)> sample;                   // one sample
  std::function<Batch(std::span<const int64_t> indices)> rows;  // all samples of a batch at once
  int64_t count = 0;
};
std::unique_ptr<Batches> sampleBatches(SampleSource source, const DataLoaderOptions& loading, int64_t combined);

/// Batches of the rows of a stream's chunks.
std::unique_ptr<Batches> chunkBatches(std::function<NextChunk()> start, const DataLoaderOptions& loading,
                                      int64_t combined);

/// The source's own batches, unchanged.
std::unique_ptr<Batches> passBatches(std::function<NextChunk()> start);

/// The same batches, made by another thread up to `buffer_size` ahead of their use.
std::unique_ptr<Batches> prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size);

}  // namespace abele::data
