// Recorder: who reads memory of the program past torch's operators. Read first: storage_table.h.
#include "capture/recorder_locks.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "capture/annotate.h"
#include "capture/arguments.h"

namespace abele::capture {
namespace {

template <class Fn>
void forEachStorage(const torch::jit::Stack& stack, size_t num_values, const Fn& fn) {
  for (size_t i = stack.size() - num_values; i < stack.size(); ++i)
    forEachTensor(stack[i], [&](int32_t, const at::Tensor& tensor) {
      if (tensor.has_storage()) fn(tensor.storage().unsafeGetStorageImpl());
    });
}

}  // namespace

bool Recorder::holdsVarying(const c10::StorageImpl* storage) const {
  const std::vector<Segment>* segments = table_.segmentsOf(storage);
  // Torch itself fills some of the memory that it reserves (at::tensor).
  const auto isEmpty = [&](const Segment& segment) {
    const ir::NodeId def = graph().values[segment.base].def;
    return !segment.written && def != ir::kNone && isAllocation(graph().nodes[def]);
  };
  return segments != nullptr && std::ranges::any_of(*segments, [&](const Segment& segment) {
           return segment.base == ir::kNone || (varies(segment.base) && !isEmpty(segment));
         });
}

void Recorder::updateLock(c10::StorageImpl* storage) {
  if (outer_ != nullptr) outer_->updateLock(storage);
  if (table_.segmentsOf(storage) == nullptr) return;
  const bool locks = holdsVarying(storage) && !failure_ && !is_unlocked_;
  if (locks || outer_ == nullptr) table_.setLocked(storage, locks);
}

void Recorder::unlockAll() noexcept {
  is_unlocked_ = true;
  table_.unlockAll();
  if (outer_ != nullptr) outer_->unlockAll();
}

void Recorder::lockAgain() {
  if (outer_ != nullptr) outer_->lockAgain();
  is_unlocked_ = false;
  if (!failure_) table_.lockAgain();
}

/// Keeps the first error. What follows is not recorded, and may read what it likes.
void Recorder::fail() {
  if (!failure_) failure_ = std::current_exception();
  table_.unlockAll();
}

void Recorder::rethrowLockedRead(const std::exception& error) {
  rethrowFailure();
  if (std::strstr(error.what(), kLockedRead) == nullptr) return;
  op_name_ = cat("memory read after ", op_name_);
  refuseRead();
}

Recorder::Unlocked::Unlocked(Recorder& recorder, torch::jit::Stack* stack, size_t num_arguments)
    : recorder_(recorder), stack_(stack) {
  forEachStorage(*stack, num_arguments, [&](c10::StorageImpl* storage) {
    bool is_known = false;
    for (Recorder* r = &recorder_; r != nullptr; r = r->outer_) {
      if (r->table_.segmentsOf(storage) == nullptr) continue;
      r->table_.setLocked(storage, false);
      is_known = true;
    }
    if (is_known) operands_.push_back(c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  });
}

void Recorder::Unlocked::close(size_t num_results) {
  forEachStorage(*stack_, num_results, [&](c10::StorageImpl* storage) { recorder_.updateLock(storage); });
}

Recorder::Unlocked::~Unlocked() {
  for (const WeakStorage& operand : operands_)
    if (const auto storage = operand.lock()) recorder_.updateLock(storage.get());
}

}  // namespace abele::capture
