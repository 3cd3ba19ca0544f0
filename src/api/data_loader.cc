// abele::DataLoader: samples in, batches of one call out.
#include "abele/data_loader.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "api/moved_from.h"
#include "base/error.h"
#include "base/log.h"
#include "calls/form_values.h"
#include "calls/forms.h"
#include "data/data_batches.h"
#include "data/stored_rows.h"
#include "options/input_shares.h"
#include "options/store.h"

namespace abele {
namespace {

void checkLoading(const DataLoaderOptions& loading) {
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"batch_size", loading.batch_size}, {"buffer_size", loading.buffer_size}})
    ABELE_REQUIRE(value >= 1, E0801,
                  {.what = cat(name, " is ", value), .expected = "1 or more", .remedy = "pass 1 or more"});
  ABELE_REQUIRE(loading.process_id >= 0 && loading.process_id < loading.num_processes, E0801,
                {.what = cat("process_id is ", loading.process_id, " of ", loading.num_processes, " processes"),
                 .expected = "0 <= process_id < num_processes",
                 .remedy = "number the processes from 0"});
}

constexpr const char* kLoaderName = "data loader";

/// Returns true if a sample has anything but tensors.
bool holdsOthers(const calls::FormValue& value) {
  return value.kind == '=' || value.kind == '-' ||
         std::ranges::any_of(value.items, holdsOthers, &calls::FormItem::value);
}

}  // namespace

std::vector<at::Tensor> detail::tensorsOfSample(Flat sample, std::string& form) {
  ABELE_REQUIRE(std::ranges::none_of(calls::formValues(sample.form), holdsOthers), E0801,
                {.what = "a sample has values that are not tensors, or undefined tensors",
                 .found = calls::formInWords(sample.form),
                 .expected = "only tensors",
                 .remedy = "convert numbers to tensors in get(): torch::tensor(label)"});
  if (form.empty()) form = sample.form;
  const bool has_keys = form.find('{') != std::string::npos;
  ABELE_REQUIRE(!has_keys || form == sample.form, E0801,
                {.what = "the keys of a sample differ from those of the first sample, or have another order",
                 .found = calls::formInWords(sample.form),
                 .expected = calls::formInWords(form),
                 .remedy = "give all samples the same keys in the same order"});
  return std::move(sample.tensors);
}

DataLoaderOptions ownShare(const Options& options, DataLoaderOptions loading) {
  const options::InputShares shares = options::inputSharesOf(OptionsAccess::values(options));
  loading.num_processes = shares.count;
  loading.process_id = shares.own;
  return loading;
}

struct DataLoader::Impl {
  const Options options;
  int64_t combined = 1;
  std::unique_ptr<data::Batches> batches;
  const bool is_in_order;
  bool is_fresh = true;  // no batch was taken since the pass or the position was chosen
  LoaderPosition position;
  std::vector<at::Tensor> current;  // the iterator's batch

  Impl(const Options& given, const DataLoaderOptions& loading)
      : options(given),
        combined(given.combinedBatchSize(loading.batch_size)),
        is_in_order(!loading.shuffle && loading.num_processes == 1) {
    given.freeze();
    options.freeze();
  }
  data::Batches& open() {
    ABELE_REQUIRE(batches, E0801, {.what = "the data loader was terminated", .remedy = "make another one"});
    return *batches;
  }

  void openSamples(data::SampleSource samples, const DataLoaderOptions& loading) {
    const int64_t count = samples.count;
    open(data::sampleBatches(std::move(samples), loading, combined), loading);
    if (batches->size() == 0)
      log::warn("the DataLoader has length 0 and yields nothing: ", count, " samples do not fill one tensor of ",
                combined,
                "; use a smaller batch_size, fewer deviceIterations, gradientAccumulation or replicas, or drop_last = "
                "false");
  }

  void open(std::unique_ptr<data::Batches> source, const DataLoaderOptions& loading) {
    batches = std::move(source);
    if (loading.mode != DataLoaderMode::kSync) batches = data::prefetched(std::move(batches), loading.buffer_size);
    batches->startPass();
  }
};

DataLoader::DataLoader(const Options& options, std::vector<at::Tensor> tensors, const DataLoaderOptions& loading) {
  checkLoading(loading);
  ABELE_REQUIRE(!tensors.empty(), E0801,
                {.what = "a data loader without tensors", .remedy = "pass one or more tensors"});
  for (size_t i = 0; i < tensors.size(); ++i) {
    ABELE_REQUIRE(tensors[i].defined() && tensors[i].layout() == at::kStrided && tensors[i].dim() > 0, E0801,
                  {.what = cat("tensor ", i, " has no dim 0 to take samples from, or is not dense"),
                   .remedy = "pass tensors whose rows are samples"});
    ABELE_REQUIRE(tensors[i].size(0) == tensors[0].size(0), E0801,
                  {.what = cat("tensor ", i, " has another number of rows than tensor 0"),
                   .found = cat(tensors[i].size(0), " rows"),
                   .expected = cat(tensors[0].size(0), " rows"),
                   .remedy = "pass tensors with one row per sample"});
  }
  impl_ = std::make_unique<Impl>(options, loading);
  const int64_t count = tensors[0].size(0);
  impl_->openSamples({.tensors = std::move(tensors), .sample = nullptr, .rows = nullptr, .count = count}, loading);
}

DataLoader::DataLoader(const Options& options, std::function<std::vector<at::Tensor>(int64_t)> sample, int64_t count,
                       const DataLoaderOptions& loading) {
  checkLoading(loading);
  ABELE_REQUIRE(sample && count >= 0, E0801,
                {.what = "a data loader without samples", .remedy = "pass a callable and the number of its samples"});
  impl_ = std::make_unique<Impl>(options, loading);
  impl_->openSamples({.tensors = {}, .sample = std::move(sample), .rows = nullptr, .count = count}, loading);
}

struct StoredRows::Impl {
  data::StoredRows rows;
};

StoredRows::StoredRows(const std::vector<std::string>& paths)
    : impl_(std::make_shared<Impl>(Impl{data::StoredRows(paths)})) {}

std::vector<ProgramValue> StoredRows::tensors() const {
  std::vector<ProgramValue> all;
  for (const auto& [name, tensor] : impl_->rows.tensors())
    all.push_back({.name = name, .sizes = tensor.sizes, .type = c10::toString(tensor.type)});
  return all;
}

DataLoader::DataLoader(const Options& options, const StoredRows& rows, const std::vector<std::string>& names,
                       const DataLoaderOptions& loading) {
  checkLoading(loading);
  const auto& tensors = rows.impl_->rows.tensors();
  ABELE_REQUIRE(!names.empty(), E0801, {.what = "a data loader without tensors", .remedy = "name one or more tensors"});
  int64_t count = 0;
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    ABELE_REQUIRE(found != tensors.end() && !found->second.sizes.empty(), E0801,
                  {.what = cat("the files have no tensor ", name, " with rows"),
                   .found = found == tensors.end() ? "" : "a tensor without dimensions",
                   .remedy = "name tensors whose rows are samples"});
    const int64_t own = found->second.sizes[0];
    if (name == names[0]) count = own;
    ABELE_REQUIRE(own == count, E0801,
                  {.what = cat("the tensor ", name, " has another number of rows than ", names[0]),
                   .found = cat(own, " rows"),
                   .expected = cat(count, " rows"),
                   .remedy = "write one row for each sample"});
  }
  for (const std::string& name : names) rows.impl_->rows.requireWhole(name);
  impl_ = std::make_unique<Impl>(options, loading);
  const auto read = [files = rows.impl_, names](std::span<const int64_t> indices) {
    data::Batch batch;
    for (const std::string& name : names) batch.push_back(files->rows.read(name, indices));
    return batch;
  };
  impl_->openSamples({.tensors = {}, .sample = nullptr, .rows = read, .count = count}, loading);
}

DataLoader::DataLoader(const Options& options, std::function<NextChunk()> start, const DataLoaderOptions& loading) {
  checkLoading(loading);
  ABELE_REQUIRE(start != nullptr, E0801,
                {.what = "a data loader without a stream", .remedy = "pass a callable that starts a pass"});
  ABELE_REQUIRE(!loading.shuffle && loading.num_processes == 1, E0801,
                {.what = "a stream cannot be shuffled or shared between processes",
                 .remedy = "do so in the stream, or pass samples with an index"});
  impl_ = std::make_unique<Impl>(options, loading);
  impl_->open(data::chunkBatches(std::move(start), loading, impl_->combined), loading);
}

DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

int64_t DataLoader::combinedBatchSize() const { return here(impl_, kLoaderName).combined; }
int64_t DataLoader::size() const { return here(impl_, kLoaderName).open().size(); }

const Options& DataLoader::options() const { return here(impl_, kLoaderName).options; }
void DataLoader::terminate() { here(impl_, kLoaderName).batches.reset(); }

bool DataLoader::next(std::vector<at::Tensor>& batch) {
  Impl& self = here(impl_, kLoaderName);
  self.is_fresh = false;
  if (!self.open().next(batch)) return false;
  ++self.position.batches;
  return true;
}

void DataLoader::reset() {
  Impl& self = here(impl_, kLoaderName);
  self.open().startPass();
  self.position = {.pass = self.position.pass + 1};
  self.is_fresh = true;
}

LoaderPosition DataLoader::position() const { return here(impl_, kLoaderName).position; }

bool DataLoader::isInOrder() const { return here(impl_, kLoaderName).is_in_order; }

void DataLoader::seek(const LoaderPosition& position) {
  ABELE_REQUIRE(position.pass >= 0 && position.batches >= 0, E0801,
                {.what = cat("the position of a loader is pass ", position.pass, ", batch ", position.batches),
                 .expected = "0 or more",
                 .remedy = "pass what position() returned"});
  Impl& self = here(impl_, kLoaderName);
  self.open().seek(position);
  self.position = position;
  self.is_fresh = true;
}

const std::vector<at::Tensor>& DataLoader::Iterator::operator*() const {
  return here(loader_->impl_, kLoaderName).current;
}
DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (!loader_->next(here(loader_->impl_, kLoaderName).current)) loader_ = nullptr;
  return *this;
}

DataLoader::Iterator DataLoader::begin() {
  // The constructor has started a pass already; a second shuffle before the first batch would only waste one order.
  if (!here(impl_, kLoaderName).is_fresh) reset();
  Iterator first(this);
  ++first;
  return first;
}

}  // namespace abele
