// For users of the library: batches of the size that one call of a model takes. Read options.h first.
//
//   abele::DataLoader loader(options, {images, labels}, {.batch_size = 16, .shuffle = true});
//   for (const auto& batch : loader) model(batch);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abele/export.h"
#include "abele/options.h"
#include "abele/signature.h"

namespace at {
class Tensor;
}

namespace abele {

struct DataLoaderOptions {
  int64_t batch_size = 1;  // samples of a micro-batch
  bool shuffle = false;    // a new order in each pass; the same seed gives the same orders
  uint64_t seed = 0;
  bool drop_last = true;  // drop the samples that do not fill a batch; a model takes full batches only
  /// kAsync: a thread makes batches ahead of their use; samples and chunks are requested on that thread.
  /// kAsyncRebatched: the same as kAsync, because one thread always joins chunks.
  DataLoaderMode mode = DataLoaderMode::kSync;
  int64_t buffer_size = 3;  // batches made ahead
  // Each process loads its own block of the samples, or of the shuffled order, which all processes derive from the
  // seed. With drop_last all processes have the same number of batches. The next pass has the samples that a shuffled
  // pass drops.
  int64_t num_processes = 1;
  int64_t process_id = 0;
};

/// Returns `loading` for this process, whose rank is in options.Distributed(). Processes share the samples, but
/// processes that hold the stages of one replica together take the same samples.
ABELE_API DataLoaderOptions ownShare(const Options& options, DataLoaderOptions loading = {});

/// The position of a loader: its pass, counted from 0, and the number of batches taken from that pass.
struct LoaderPosition {
  int64_t pass = 0;
  int64_t batches = 0;
};

/// Gets the next rows of a stream, any number per call. Returns false at the end.
using NextChunk = std::function<bool(std::vector<at::Tensor>& chunk)>;

namespace detail {

/// Returns the sample's tensors. Throws E0801 if it holds anything but tensors, or if its keys differ from those of the
/// samples before. form: the form of all samples; the first one sets it.
ABELE_API std::vector<at::Tensor> tensorsOfSample(Flat sample, std::string& form);
/// The tensors of a sample, which is a structure of tensors or an example of torch::data without a target.
template <class Sample>
auto tensorsOfSample(const Sample& sample, std::string& form) {
  if constexpr (IsStructure<Sample>::value) {
    return tensorsOfSample(flattened(sample), form);
  } else {
    static_assert(requires { sample.data; }, "samples are tensors or structures of them (abele/structure.h)");
    return tensorsOfSample(sample.data, form);
  }
}
/// Sample i of a data set of torch::data, mapped or not.
template <class DataSet>
auto sampleOf(DataSet& data, size_t i, std::string& form) {
  if constexpr (requires { data.get(i); }) {
    return tensorsOfSample(data.get(i), form);
  } else {
    const std::vector<size_t> indices{i};
    auto batch = data.get_batch(indices);
    if constexpr (requires { batch.front(); }) {
      return tensorsOfSample(batch.front(), form);
    } else {  // stacked
      auto tensors = tensorsOfSample(batch, form);
      for (auto& tensor : tensors) tensor = tensor.select(0, 0);
      return tensors;
    }
  }
}
template <class DataSet>
concept TorchDataSet = requires(DataSet& data) {
  { *data.size() } -> std::convertible_to<size_t>;
} && (requires(DataSet& data) { data.get(size_t{}); } || requires(DataSet& data, std::vector<size_t> i) {
                         data.get_batch(i);
                       });
/// A function that returns sample i, and the number of samples.
template <class DataSet>
auto samplesOf(DataSet data) {
  auto shared = std::make_shared<DataSet>(std::move(data));
  const int64_t count = shared->size() ? static_cast<int64_t>(*shared->size()) : -1;
  const auto sample = [shared, form = std::string()](int64_t i) mutable {
    return sampleOf(*shared, static_cast<size_t>(i), form);
  };
  return std::pair(sample, count);
}

}  // namespace detail

/// Samples in safetensors files: rows of tensors. A row stays in its file until a loader needs it, so the data may be
/// larger than memory. Copies share the open files. Threads: safe.
class ABELE_API StoredRows {
 public:
  /// If several files have a tensor of one name, its rows follow each other in the order of the files. Throws E0712,
  /// E0501; E0801 if the parts of a tensor differ in the type or shape of their rows.
  explicit StoredRows(const std::vector<std::string>& paths);
  /// The files' tensors by name. Dim 0 of the sizes counts all rows.
  std::vector<ProgramValue> tensors() const;

 private:
  friend class DataLoader;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Combines micro-batches: each batch has batch_size * deviceIterations * gradientAccumulation samples on dim 0.
/// next() rethrows what a source throws, after the batches made before it.
/// Threads: owner only. Source: spec data.md sections 1 to 3.
class ABELE_API DataLoader {
 public:
  /// Samples are the rows (dim 0) of these tensors. All tensors must have the same number of rows (E0801).
  DataLoader(const Options& options, std::vector<at::Tensor> tensors, const DataLoaderOptions& loading = {});
  /// Samples are the rows of these tensors of the files. A batch has its tensors in the order of `names`. Verifies the
  /// tensors' checksums first, if the files have them. Throws E0801 if a tensor is missing or the numbers of rows
  /// differ, E0501 for damage, E0712.
  DataLoader(const Options& options, const StoredRows& rows, const std::vector<std::string>& names,
             const DataLoaderOptions& loading = {});
  /// sample(i) returns sample i of `count`: tensors without a batch dimension, of the same shapes and types (E0801).
  DataLoader(const Options& options, std::function<std::vector<at::Tensor>(int64_t)> sample, int64_t count,
             const DataLoaderOptions& loading = {});
  /// Samples of a data set of torch::data, before or after map(), whose size is known (E0801). A sample is an Example,
  /// a tensor, or another structure of tensors (abele/structure.h). A sample that holds numbers throws E0801.
  template <detail::TorchDataSet DataSet>
  DataLoader(const Options& options, DataSet data, const DataLoaderOptions& loading = {})
      : DataLoader(options, detail::samplesOf(std::move(data)), loading) {}
  /// start() begins a pass over a stream of chunks. The loader joins their rows and splits them into batches, so only
  /// the last batch of a pass can be incomplete. A stream is neither shuffled nor shared between processes (E0801).
  DataLoader(const Options& options, std::function<NextChunk()> start, const DataLoaderOptions& loading = {});
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;
  ~DataLoader();

  int64_t combinedBatchSize() const;
  /// Number of batches in a pass. Throws E0801 for a stream, which has no known end.
  int64_t size() const;

  /// Gets the next batch of this pass. Returns false at the end.
  bool next(std::vector<at::Tensor>& batch);
  /// The options of the constructor, frozen.
  const Options& options() const;
  /// Ends the thread that makes batches ahead. Later requests for a batch throw E0801.
  void terminate();
  /// Starts a pass. A loader that shuffles takes a new order.
  void reset();
  LoaderPosition position() const;
  /// Returns true if the loader takes all samples in the order of their indices. Then a position means the same in
  /// every loader with the same samples and batches, in Python too.
  bool isInOrder() const;
  /// Moves to this position, as if the batches before it had been taken. Does not request the samples before it, but
  /// reads a stream again from the start of the pass. A loop with begin() continues at the position. Throws E0801 for
  /// negative numbers.
  void seek(const LoaderPosition& position);

  /// One pass, for range-based for. begin() calls reset(). A batch is valid until the next one is taken.
  class ABELE_API Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::vector<at::Tensor>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = const value_type&;
    Iterator() = default;  // an end
    const std::vector<at::Tensor>& operator*() const;
    const std::vector<at::Tensor>* operator->() const { return &**this; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return loader_ == other.loader_; }

   private:
    friend class DataLoader;
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    DataLoader* loader_ = nullptr;
  };
  Iterator begin();
  Iterator end() { return Iterator(nullptr); }

 private:
  template <class Sample>
  DataLoader(const Options& options, std::pair<Sample, int64_t> samples, const DataLoaderOptions& loading)
      : DataLoader(options, std::move(samples.first), samples.second, loading) {}
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace detail {

/// Starts passes over a range, which may be a data loader of torch::data.
template <class Range>
std::function<NextChunk()> passesOf(Range& range) {
  return [&range]() -> NextChunk {
    auto at = std::make_shared<decltype(range.begin())>(range.begin());
    return [&range, at, is_first = true, form = std::string()](std::vector<at::Tensor>& batch) mutable {
      if (!is_first) ++*at;
      is_first = false;
      if (!(*at != range.end())) return false;
      if constexpr (std::convertible_to<decltype(**at), std::vector<at::Tensor>>)
        batch = **at;
      else
        batch = tensorsOfSample(**at, form);
      return true;
    };
  };
}

}  // namespace detail

struct AccessorOptions {
  int64_t buffer_size = 3;        // batches made ahead
  bool load_indefinitely = true;  // start the next pass when one ends
  bool early_preload = false;     // start the first pass at once, not at its first use
  /// Rows of each batch: the accessor joins and splits the source's batches. Empty: keep the source's batches.
  std::optional<int64_t> rebatched_size = {};
  bool drop_last = true;  // with rebatched_size: drop the rows that do not fill a batch
};

/// Batches of any source. A thread makes them ahead of their use. If the source throws, next() rethrows after the
/// batches that were made before. The caller owns a batch.
/// Threads: owner only. Source: spec data.md section 4, but with a thread in place of a process.
class ABELE_API AsynchronousDataAccessor {
 public:
  /// start() begins a pass over batches, on the accessor's thread. Throws E0801 for sizes below 1.
  explicit AsynchronousDataAccessor(std::function<NextChunk()> start, const AccessorOptions& options = {});
  /// A range of batches: tensors, vectors of tensors or examples of torch::data. Each pass iterates over it again.
  /// Requires: the range outlives this object, and only this object iterates over it.
  template <class Range>
    requires requires(Range& range) { range.begin() != range.end(); }
  explicit AsynchronousDataAccessor(Range& range, const AccessorOptions& options = {})
      : AsynchronousDataAccessor(detail::passesOf(range), options) {}
  AsynchronousDataAccessor(AsynchronousDataAccessor&&) noexcept;
  AsynchronousDataAccessor& operator=(AsynchronousDataAccessor&&) noexcept;
  ~AsynchronousDataAccessor();

  /// Gets the next batch of this pass. Returns false at the end.
  bool next(std::vector<at::Tensor>& batch);
  /// Starts a pass from the first batch. If load_indefinitely has already started a pass and no batch of it was taken,
  /// keeps that pass.
  void reset();
  /// Ends the thread. Later requests for a batch throw E0801.
  void terminate();

  /// One pass, for range-based for. begin() calls reset(). A batch is valid until the next one is taken.
  class ABELE_API Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::vector<at::Tensor>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = const value_type&;
    Iterator() = default;  // an end
    const std::vector<at::Tensor>& operator*() const;
    const std::vector<at::Tensor>* operator->() const { return &**this; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return accessor_ == other.accessor_; }

   private:
    friend class AsynchronousDataAccessor;
    explicit Iterator(AsynchronousDataAccessor* accessor) : accessor_(accessor) {}
    AsynchronousDataAccessor* accessor_ = nullptr;
  };
  Iterator begin();
  Iterator end() { return Iterator(nullptr); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele
