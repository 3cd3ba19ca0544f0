// abele::AsynchronousDataAccessor: makes batches of any source ahead of their use.
#include <utility>

#include <ATen/core/Tensor.h>

#include "abele/data_loader.h"
#include "api/moved_from.h"
#include "base/error.h"
#include "data/data_batches.h"

namespace abele {

namespace {
constexpr const char* kAccessorName = "data accessor";
}  // namespace

struct AsynchronousDataAccessor::Impl {
  std::unique_ptr<data::Batches> batches;
  bool loads_indefinitely = true;
  bool has_begun = false, is_fresh = false;  // a pass has begun; no batch of it was taken
  data::Batch current;                       // the iterator's batch

  data::Batches& open() {
    ABELE_REQUIRE(batches, E0801, {.what = "the data accessor was terminated", .remedy = "make another one"});
    return *batches;
  }
  void startPass() {
    open().startPass();
    has_begun = is_fresh = true;
  }
};

AsynchronousDataAccessor::AsynchronousDataAccessor(std::function<NextChunk()> start, const AccessorOptions& options)
    : impl_(std::make_unique<Impl>()) {
  ABELE_REQUIRE(start != nullptr, E0801,
                {.what = "a data accessor without a source", .remedy = "pass a callable that starts a pass"});
  ABELE_REQUIRE(
      options.buffer_size >= 1 && options.rebatched_size.value_or(1) >= 1, E0801,
      {.what = "a data accessor with an empty buffer or empty batches",
       .found = cat("buffer_size ", options.buffer_size, ", rebatched_size ", options.rebatched_size.value_or(1)),
       .expected = "1 or more"});
  auto source = options.rebatched_size
                    ? data::chunkBatches(std::move(start), {.drop_last = options.drop_last}, *options.rebatched_size)
                    : data::passBatches(std::move(start));
  impl_->batches = data::prefetched(std::move(source), options.buffer_size);
  impl_->loads_indefinitely = options.load_indefinitely;
  if (options.early_preload) impl_->startPass();
}

AsynchronousDataAccessor::AsynchronousDataAccessor(AsynchronousDataAccessor&&) noexcept = default;
AsynchronousDataAccessor& AsynchronousDataAccessor::operator=(AsynchronousDataAccessor&&) noexcept = default;
AsynchronousDataAccessor::~AsynchronousDataAccessor() = default;

bool AsynchronousDataAccessor::next(std::vector<at::Tensor>& batch) {
  Impl& self = here(impl_, kAccessorName);
  if (!self.has_begun) self.startPass();
  self.is_fresh = false;
  if (self.open().next(batch)) return true;
  self.has_begun = false;
  if (self.loads_indefinitely) self.startPass();
  return false;
}

void AsynchronousDataAccessor::reset() {
  Impl& self = here(impl_, kAccessorName);
  self.open();
  if (!self.is_fresh) self.startPass();
}

void AsynchronousDataAccessor::terminate() { here(impl_, kAccessorName).batches.reset(); }

AsynchronousDataAccessor::Iterator AsynchronousDataAccessor::begin() {
  reset();
  Iterator first(this);
  ++first;
  return first;
}
const std::vector<at::Tensor>& AsynchronousDataAccessor::Iterator::operator*() const {
  return here(accessor_->impl_, kAccessorName).current;
}
AsynchronousDataAccessor::Iterator& AsynchronousDataAccessor::Iterator::operator++() {
  if (!accessor_->next(here(accessor_->impl_, kAccessorName).current)) accessor_ = nullptr;
  return *this;
}

}  // namespace abele
