// abele::DataLoader: samples in, batches of one call out.
#include "abele/data_loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>

#include "base/error.h"

namespace abele {

struct DataLoader::Impl {
  DataLoaderOptions loading;
  int64_t combined = 1;
  int64_t count = 0;
  std::vector<at::Tensor> tensors;                         // either these
  std::function<std::vector<at::Tensor>(int64_t)> sample;  // or this
  at::Generator generator;
  at::Tensor order;  // i64[count]; undefined: as they are
  int64_t position = 0;
  std::vector<at::Tensor> current;  // of the iterator

  void startPass() {
    position = 0;
    if (loading.shuffle) order = at::randperm(count, generator, at::TensorOptions(at::kLong));
  }
  std::vector<at::Tensor> rows(int64_t begin, int64_t end) const;
};

namespace {

void checkLoading(const DataLoaderOptions& loading) {
  ABELE_REQUIRE(
      loading.batch_size >= 1, E0801,
      {.what = cat("batch_size is ", loading.batch_size), .expected = "1 or more", .remedy = "pass 1 or more"});
}

/// Samples of several calls, each a list of tensors, stacked on a new dim 0.
std::vector<at::Tensor> stackSamples(const std::vector<std::vector<at::Tensor>>& samples) {
  std::vector<at::Tensor> batch;
  for (size_t t = 0; t < samples[0].size(); ++t) {
    std::vector<at::Tensor> column;
    for (const std::vector<at::Tensor>& sample : samples) {
      const bool alike = sample.size() == samples[0].size() && sample[t].sizes() == samples[0][t].sizes() &&
                         sample[t].scalar_type() == samples[0][t].scalar_type();
      ABELE_REQUIRE(alike, E0801,
                    {.what = cat("tensor ", t, " of a sample differs in shape or type from the others"),
                     .expected = "samples that are alike",
                     .remedy = "pad or convert them in sample()"});
      column.push_back(sample[t]);
    }
    batch.push_back(at::stack(column));
  }
  return batch;
}

}  // namespace

std::vector<at::Tensor> DataLoader::Impl::rows(int64_t begin, int64_t end) const {
  std::vector<at::Tensor> batch;
  if (!sample) {
    for (const at::Tensor& tensor : tensors)
      batch.push_back(order.defined() ? tensor.index_select(0, order.narrow(0, begin, end - begin))
                                      : tensor.narrow(0, begin, end - begin));
    return batch;
  }
  std::vector<std::vector<at::Tensor>> samples;
  for (int64_t i = begin; i < end; ++i)
    samples.push_back(sample(order.defined() ? order.const_data_ptr<int64_t>()[i] : i));
  return stackSamples(samples);
}

DataLoader::DataLoader(const Options& options, std::vector<at::Tensor> tensors, const DataLoaderOptions& loading)
    : impl_(std::make_unique<Impl>()) {
  checkLoading(loading);
  ABELE_REQUIRE(!tensors.empty(), E0801,
                {.what = "a data loader without tensors", .remedy = "pass one or more tensors"});
  for (size_t i = 0; i < tensors.size(); ++i) {
    ABELE_REQUIRE(tensors[i].dim() > 0, E0801,
                  {.what = cat("tensor ", i, " has no dim 0 to take samples from"),
                   .remedy = "pass tensors whose rows are samples"});
    ABELE_REQUIRE(tensors[i].size(0) == tensors[0].size(0), E0801,
                  {.what = cat("tensor ", i, " has another number of rows than tensor 0"),
                   .found = cat(tensors[i].size(0), " rows"),
                   .expected = cat(tensors[0].size(0), " rows"),
                   .remedy = "pass tensors with one row per sample"});
  }
  impl_->loading = loading;
  impl_->combined = options.combinedBatchSize(loading.batch_size);
  impl_->count = tensors[0].size(0);
  impl_->tensors = std::move(tensors);
  impl_->generator = at::detail::createCPUGenerator(loading.seed);
  impl_->startPass();
}

DataLoader::DataLoader(const Options& options, std::function<std::vector<at::Tensor>(int64_t)> sample, int64_t count,
                       const DataLoaderOptions& loading)
    : impl_(std::make_unique<Impl>()) {
  checkLoading(loading);
  ABELE_REQUIRE(sample && count >= 0, E0801,
                {.what = "a data loader without samples", .remedy = "pass a callable and how many samples it gives"});
  impl_->loading = loading;
  impl_->combined = options.combinedBatchSize(loading.batch_size);
  impl_->count = count;
  impl_->sample = std::move(sample);
  impl_->generator = at::detail::createCPUGenerator(loading.seed);
  impl_->startPass();
}

DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

int64_t DataLoader::combinedBatchSize() const { return impl_->combined; }
int64_t DataLoader::size() const {
  const int64_t full = impl_->count / impl_->combined;
  return full + (!impl_->loading.drop_last && impl_->count % impl_->combined != 0 ? 1 : 0);
}

bool DataLoader::next(std::vector<at::Tensor>& batch) {
  const int64_t begin = impl_->position;
  const int64_t end = std::min(begin + impl_->combined, impl_->count);
  if (begin >= end || (impl_->loading.drop_last && end - begin < impl_->combined)) return false;
  batch = impl_->rows(begin, end);
  impl_->position = end;
  return true;
}

void DataLoader::reset() { impl_->startPass(); }

const std::vector<at::Tensor>& DataLoader::Iterator::operator*() const { return loader_->impl_->current; }
DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (!loader_->next(loader_->impl_->current)) loader_ = nullptr;
  return *this;
}

DataLoader::Iterator DataLoader::begin() {
  // The constructor has started a pass already; a second shuffle before the first batch would only waste one order.
  if (impl_->position != 0) reset();
  Iterator first(this);
  ++first;
  return first;
}

}  // namespace abele
