// For DataLoader: where the batches of a pass come from.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "abele/data_loader.h"

namespace abele::host {

using Batch = std::vector<at::Tensor>;

/// Passes of batches. Threads: one caller at a time.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual void startPass() = 0;
  /// As if this object were new, had started its passes up to this one, and had given this many batches of it.
  virtual void seek(const LoaderPosition& position) = 0;
  /// False at the end of the pass.
  virtual bool next(Batch& batch) = 0;
  virtual int64_t size() const = 0;
};

/// Rows of tensors or of files, or samples of a function, in order or shuffled; all of them or the share of one
/// process.
struct SampleSource {
  Batch tensors;                                                // either these
  std::function<Batch(int64_t index)> sample;                   // or this
  std::function<Batch(std::span<const int64_t> indices)> rows;  // or this, for all samples of a batch at once
  int64_t count = 0;
};
std::unique_ptr<Batches> sampleBatches(SampleSource source, const DataLoaderOptions& loading, int64_t combined);

/// Rows of the chunks of a stream.
std::unique_ptr<Batches> chunkBatches(std::function<NextChunk()> start, const DataLoaderOptions& loading,
                                      int64_t combined);

/// The batches of a source as they are.
std::unique_ptr<Batches> passBatches(std::function<NextChunk()> start);

/// The same batches, made by a thread of its own, up to `buffer_size` ahead of their use.
std::unique_ptr<Batches> prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size);

}  // namespace abele::host
