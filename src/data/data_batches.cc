#include "data/data_batches.h"

#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>

#include "base/error.h"
#include "options/input_shares.h"

namespace abele::data {
namespace {

/// Joins the t-th tensors of all parts, for each t. first_dim: of the sizes that must be equal.
template <class Join>
Batch columnsOf(const std::vector<Batch>& parts, size_t first_dim, const Message& refusal, const Join& join) {
  Batch batch;
  for (size_t t = 0; t < parts[0].size(); ++t) {
    std::vector<at::Tensor> column;
    for (const Batch& part : parts) {
      const bool alike = part.size() == parts[0].size() && part[t].defined() &&
                         part[t].sizes().slice(first_dim) == parts[0][t].sizes().slice(first_dim) &&
                         part[t].scalar_type() == parts[0][t].scalar_type();
      if (!alike) {
        Message message = refusal;
        message.what = cat("tensor ", t, refusal.what);
        throwUser(ErrorCode::E0801, std::move(message));
      }
      column.push_back(part[t]);
    }
    batch.push_back(join(column));
  }
  return batch;
}

/// The positions of one process in the order of all samples.
class Share {
 public:
  Share(const DataLoaderOptions& loading, int64_t combined, int64_t count) : block_{0, count} {
    if (loading.num_processes > 1)
      block_ = options::sampleBlockOf(count, loading.num_processes, loading.process_id, combined, loading.drop_last);
    start_ = block_.begin;
  }
  /// Between shuffled passes: moves the block by the number of samples that the last pass left out, and back.
  void toggle() { start_ = start_ == block_.begin ? block_.begin + block_.left_out : block_.begin; }
  int64_t start() const { return start_; }
  int64_t length() const { return block_.length; }

 private:
  options::SampleBlock block_;
  int64_t start_ = 0;
};

class SampleBatches : public Batches {
 public:
  SampleBatches(SampleSource source, const DataLoaderOptions& loading, int64_t combined)
      : source_(std::move(source)),
        loading_(loading),
        combined_(combined),
        share_(loading, combined, source_.count),
        generator_(at::detail::createCPUGenerator(loading.seed)) {}

  void seek(const LoaderPosition& position) override {
    constexpr int64_t kMost = 1'000'000;  // because an order is drawn for each pass
    ABELE_REQUIRE(!loading_.shuffle || position.pass <= kMost, E0801,
                  {.what = cat("the position of a loader that shuffles is pass ", position.pass),
                   .expected = cat("at most ", kMost),
                   .remedy = "pass what position() returned"});
    generator_ = at::detail::createCPUGenerator(loading_.seed);
    share_ = Share(loading_, combined_, source_.count);
    const int64_t passes = loading_.shuffle ? position.pass : 0;  // without shuffle all passes are alike
    for (int64_t pass = 0; pass <= passes; ++pass) startPass();
    position_ = std::min(position.batches, share_.length() / combined_ + 1) * combined_;
  }

  void startPass() override {
    position_ = 0;
    if (!loading_.shuffle) return;
    order_ = at::randperm(source_.count, generator_, at::TensorOptions(at::kLong));
    share_.toggle();
  }

  bool next(Batch& batch) override {
    const int64_t begin = position_;
    const int64_t end = std::min(begin + combined_, share_.length());
    if (begin >= end || (loading_.drop_last && end - begin < combined_)) return false;
    batch = rows(share_.start() + begin, share_.start() + end);
    position_ = end;
    return true;
  }

  int64_t size() const override {
    const int64_t full = share_.length() / combined_;
    return full + (!loading_.drop_last && share_.length() % combined_ != 0 ? 1 : 0);
  }

 private:
  Batch rows(int64_t begin, int64_t end) const {
    Batch batch;
    if (source_.rows) {
      if (order_.defined())
        return source_.rows({order_.const_data_ptr<int64_t>() + begin, order_.const_data_ptr<int64_t>() + end});
      std::vector<int64_t> indices(static_cast<size_t>(end - begin));
      std::iota(indices.begin(), indices.end(), begin);
      return source_.rows(indices);
    }
    if (!source_.sample) {
      for (const at::Tensor& tensor : source_.tensors)
        batch.push_back(order_.defined()
                            ? tensor.index_select(0, order_.narrow(0, begin, end - begin))
                            : tensor.narrow(0, begin, end - begin).clone());  // because the caller may write to a batch
      return batch;
    }
    std::vector<Batch> samples;
    for (int64_t i = begin; i < end; ++i)
      samples.push_back(source_.sample(order_.defined() ? order_.const_data_ptr<int64_t>()[i] : i));
    const Message refusal{.what = " of a sample differs in shape or type from the others",
                          .expected = "samples of the same shapes and types",
                          .remedy = "pad or convert them in sample()"};
    return columnsOf(samples, 0, refusal, [](const auto& column) { return at::stack(column); });
  }

  SampleSource source_;
  DataLoaderOptions loading_;
  int64_t combined_;
  Share share_;
  at::Generator generator_;
  at::Tensor order_;  // i64[count]; undefined: in order
  int64_t position_ = 0;
};

void seekByReading(Batches& batches, const LoaderPosition& position) {
  for (int64_t pass = 0; pass <= position.pass; ++pass) batches.startPass();
  Batch skipped;
  for (int64_t i = 0; i < position.batches && batches.next(skipped); ++i) skipped.clear();
}

class ChunkBatches : public Batches {
 public:
  ChunkBatches(std::function<NextChunk()> start, const DataLoaderOptions& loading, int64_t combined)
      : start_(std::move(start)), drop_last_(loading.drop_last), combined_(combined) {}

  void seek(const LoaderPosition& position) override { seekByReading(*this, position); }

  void startPass() override {
    next_chunk_ = start_();
    chunk_.clear();
    used_ = 0;
  }

  bool next(Batch& batch) override {
    std::vector<Batch> parts;
    int64_t rows = 0;
    while (rows < combined_ && fill()) {
      const int64_t taken = std::min(combined_ - rows, chunk_[0].size(0) - used_);
      Batch part;
      for (const at::Tensor& tensor : chunk_) part.push_back(tensor.narrow(0, used_, taken));
      parts.push_back(std::move(part));
      used_ += taken;
      rows += taken;
    }
    if (rows == 0 || (drop_last_ && rows < combined_)) return false;
    batch = joined(parts);
    return true;
  }

  int64_t size() const override {
    throwUser(ErrorCode::E0801, {.what = "a loader of a stream has no size", .remedy = "count the batches of a pass"});
  }

 private:
  /// Fills chunk_ with unused rows. Returns false at the end of the stream.
  bool fill() {
    while (chunk_.empty() || used_ >= chunk_[0].size(0)) {
      if (!next_chunk_) return false;
      chunk_.clear();
      used_ = 0;
      if (!next_chunk_(chunk_)) {
        next_chunk_ = nullptr;
        chunk_.clear();
        return false;
      }
      bool fits = !chunk_.empty();
      for (const at::Tensor& tensor : chunk_)
        fits = fits && tensor.defined() && tensor.dim() > 0 && tensor.size(0) == chunk_[0].size(0);
      ABELE_REQUIRE(fits, E0801,
                    {.what = "a chunk whose tensors have no rows or different numbers of rows",
                     .remedy = "pass one or more tensors with a row for each sample"});
    }
    return true;
  }

  static Batch joined(const std::vector<Batch>& parts) {
    if (parts.size() == 1) return parts[0];
    const Message refusal{.what = " of a chunk differs in the shape or type of its rows from the others",
                          .expected = "rows of the same shape and type",
                          .remedy = "pad or convert them in the stream"};
    return columnsOf(parts, 1, refusal, [](const auto& column) { return at::cat(column); });
  }

  std::function<NextChunk()> start_;
  bool drop_last_;
  int64_t combined_;
  NextChunk next_chunk_;
  Batch chunk_;
  int64_t used_ = 0;  // rows of chunk_ that were taken
};

class PassBatches : public Batches {
 public:
  explicit PassBatches(std::function<NextChunk()> start) : start_(std::move(start)) {}
  void startPass() override { next_ = start_(); }
  void seek(const LoaderPosition& position) override { seekByReading(*this, position); }
  bool next(Batch& batch) override { return next_(batch); }
  int64_t size() const override {
    throwUser(ErrorCode::E0801, {.what = "the number of batches of a source is not known"});
  }

 private:
  std::function<NextChunk()> start_;
  NextChunk next_;
};

}  // namespace

std::unique_ptr<Batches> sampleBatches(SampleSource source, const DataLoaderOptions& loading, int64_t combined) {
  return std::make_unique<SampleBatches>(std::move(source), loading, combined);
}

std::unique_ptr<Batches> chunkBatches(std::function<NextChunk()> start, const DataLoaderOptions& loading,
                                      int64_t combined) {
  return std::make_unique<ChunkBatches>(std::move(start), loading, combined);
}

std::unique_ptr<Batches> passBatches(std::function<NextChunk()> start) {
  return std::make_unique<PassBatches>(std::move(start));
}

}  // namespace abele::data
