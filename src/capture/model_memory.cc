#include "capture/model_memory.h"

#include <algorithm>
#include <utility>

#include "capture/storage_table.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

/// The first address, and the one after the last. A tensor without memory has the same address twice.
std::pair<uintptr_t, uintptr_t> rangeOf(const at::TensorBase& tensor) {
  // A tensor of a type that Abele lacks is not an operand of a program.
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || !isKnown(tensor.scalar_type())) return {0, 0};
  // Locked memory has no address for others.
  const void* memory = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (memory == nullptr) return {0, 0};
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  return {begin + static_cast<uintptr_t>(beginByte(tensor)), begin + static_cast<uintptr_t>(endByte(tensor))};
}

}  // namespace

void MemoryOfModel::add(const at::TensorBase& tensor, int32_t index) {
  const auto [begin, end] = rangeOf(tensor);
  if (begin == end) return;
  by_begin_.emplace(begin, Range{end, tensor.storage().unsafeGetStorageImpl(), index});
  longest_ = std::max(longest_, end - begin);
}

std::optional<int32_t> MemoryOfModel::sharedBy(const at::TensorBase& tensor) const {
  const auto [begin, end] = rangeOf(tensor);
  if (begin == end) return std::nullopt;
  const c10::StorageImpl* own = tensor.storage().unsafeGetStorageImpl();
  for (auto it = by_begin_.lower_bound(end); it != by_begin_.begin();) {
    --it;
    if (it->first + longest_ <= begin) break;
    if (it->second.end > begin && it->second.storage != own) return it->second.index;
  }
  return std::nullopt;
}

}  // namespace abele::capture
