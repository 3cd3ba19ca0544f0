#include "session/shared_weights.h"

#include <utility>

#include "base/error.h"
#include "capture/annotate.h"
#include "compile/tensors.h"
#include "session/impl.h"

namespace abele::session {
namespace {

int64_t bytesOf(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

// Without torch's check: a capture on another thread may have locked the memory.
const char* beginOf(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

const void* addressOf(const at::Tensor& tensor) {
  return beginOf(tensor) + tensor.storage_offset() * tensor.element_size();
}

/// Whether the storage of the tensor contains all its elements.
bool isWhole(const at::Tensor& tensor) {
  const int64_t end = tensor.storage_offset() * tensor.element_size() + bytesOf(tensor);
  return beginOf(tensor) != nullptr && static_cast<int64_t>(tensor.storage().nbytes()) >= end;
}

}  // namespace

bool SharedWeights::isSame(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

bool SharedWeights::isThere(const Place& place, const at::Tensor& memory) const {
  return isSame(place.memory, memory) && place.address == addressOf(memory) && isWhole(memory) &&
         claims_.holds(place.address);
}

bool SharedWeights::place(size_t external, const at::Tensor& memory) {
  if (contains(external) && isThere(places_[external], memory)) return true;
  drop(external);
  const auto index = static_cast<int32_t>(external);
  if (!memory.device().is_cpu() || !memory.is_non_overlapping_and_dense() || bytesOf(memory) == 0 || !isWhole(memory))
    return false;
  Place next{memory.detach(), nullptr, backend_.writes(index)};
  next.address = next.memory.mutable_data_ptr();  // a lazy copy becomes one of its own here
  if (!memory_) memory_.emplace();
  if (!memory_->holds(next.address, bytesOf(memory), next.is_written) || !claims_.take(next.address, bytesOf(memory)))
    return false;
  if (!backend_.placeIn(index, next.memory)) {
    claims_.release(next.address);
    return false;
  }
  if (places_.size() <= external) places_.resize(external + 1);
  places_[external] = std::move(next);
  return true;
}

void SharedWeights::drop(size_t external) {
  if (!contains(external)) return;
  backend_.placeIn(static_cast<int32_t>(external), at::Tensor());
  claims_.release(places_[external].address);
  places_[external] = {};
}

void SharedWeights::follow(const std::vector<exe::External>& externals) {
  bool moved = false;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!contains(i) || (addressOf(places_[i].memory) == places_[i].address && isWhole(places_[i].memory))) continue;
    const at::Tensor memory = places_[i].memory;
    ABELE_REQUIRE(
        isWhole(memory), E0704,
        {.what = cat("the memory of parameter ", externals[i].name, " was freed while the devices work in it"),
         .found = cat(memory.storage().nbytes(), " bytes"),
         .expected = cat(bytesOf(memory), " bytes or more"),
         .remedy = cat("keep the storage of the parameters, or let the devices have copies: ",
                       inLanguage("Options::shareWeights(false)"))});
    if (!std::exchange(moved, true)) lookAgain();
    if (!place(i, memory)) backend_.upload(static_cast<int32_t>(i), memory);
  }
}

std::vector<size_t> SharedWeights::elsewhere(const std::vector<at::Tensor*>& model_of) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < places_.size(); ++i)
    if (contains(i) && !isSame(places_[i].memory, *model_of[i])) found.push_back(i);
  return found;
}

int64_t SharedWeights::firstLost() {
  if (claims_.holdsAll()) return -1;
  for (size_t i = 0; i < places_.size(); ++i)
    if (contains(i) && !claims_.holds(places_[i].address)) return static_cast<int64_t>(i);
  return -1;
}

void SharedWeights::noteUpdates(const std::vector<at::Tensor*>& model_of) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!contains(i) || !places_[i].is_written) continue;
    const at::Tensor& tensor = *model_of[i];
    if (!tensor.is_inference() && tensor.is_alias_of(places_[i].memory)) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

bool SharedWeights::isChanged(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return false;
  return claims_.overlaps(beginOf(tensor), static_cast<int64_t>(tensor.storage().nbytes()));
}

int64_t SharedWeights::bytes() const {
  int64_t bytes = 0;
  for (const Place& place : places_)
    if (place.memory.defined()) bytes += bytesOf(place.memory);
  return bytes;
}

}  // namespace abele::session
