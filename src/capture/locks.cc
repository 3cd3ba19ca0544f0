#include "capture/locks.h"

#include <algorithm>

#include <ATen/core/Tensor.h>

#include "capture/arguments.h"

namespace abele::capture {
namespace {

template <class Fn>
void forEachStorage(const torch::jit::Stack& stack, size_t num_values, const Fn& fn) {
  forEachTensorOf(torch::jit::last(stack, num_values), [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) fn(tensor.storage().unsafeGetStorageImpl());
  });
}

}  // namespace

bool Locks::holdsVarying(const c10::StorageImpl* storage) const {
  const std::vector<Segment>* segments = table_.segmentsOf(storage);
  // Torch itself fills some of the memory that it reserves (at::tensor).
  const auto isEmpty = [&](const Segment& segment) {
    const ir::Node* maker = writer_.makerOf(segment.base);
    return !segment.written && maker != nullptr && isAllocation(maker->op);
  };
  return segments != nullptr && std::ranges::any_of(*segments, [&](const Segment& segment) {
           return segment.base == ir::kNone || (writer_.varies(segment.base) && !isEmpty(segment));
         });
}

void Locks::update(c10::StorageImpl* storage) {
  if (outer_ != nullptr) outer_->update(storage);
  if (table_.segmentsOf(storage) == nullptr) return;
  const bool locks = holdsVarying(storage) && !is_released_ && !is_unlocked_;
  if (locks || outer_ == nullptr) table_.setLocked(storage, locks);
}

void Locks::unlockAll() noexcept {
  is_unlocked_ = true;
  table_.unlockAll();
  if (outer_ != nullptr) outer_->unlockAll();
}

void Locks::lockAgain() {
  if (outer_ != nullptr) outer_->lockAgain();
  is_unlocked_ = false;
  if (!is_released_) table_.lockAgain();
}

void Locks::release() {
  is_released_ = true;
  table_.unlockAll();
}

bool Locks::unlock(c10::StorageImpl* storage) {
  const bool is_known = table_.segmentsOf(storage) != nullptr;
  if (is_known) table_.setLocked(storage, false);
  return (outer_ != nullptr && outer_->unlock(storage)) || is_known;
}

Locks::Unlocked::Unlocked(Locks& locks, const torch::jit::Stack& stack, size_t num_arguments)
    : locks_(locks), stack_(stack) {
  forEachStorage(stack, num_arguments, [&](c10::StorageImpl* storage) {
    if (locks_.unlock(storage)) operands_.push_back(c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  });
}

void Locks::Unlocked::close(size_t num_results) {
  forEachStorage(stack_, num_results, [&](c10::StorageImpl* storage) { locks_.update(storage); });
}

Locks::Unlocked::~Unlocked() {
  for (const auto& operand : operands_)
    if (const auto storage = operand.lock()) locks_.update(storage.get());
}

}  // namespace abele::capture
