#include "capture/storage_table.h"

#include <cstring>

#include "base/error.h"
#include "capture/type_bridge.h"

namespace abele::capture {

int64_t beginByte(const at::TensorBase& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

int64_t endByte(const at::TensorBase& tensor) { return beginByte(tensor) + typeOf(tensor).extentBytes(); }

bool StorageTable::knows(const at::TensorBase& tensor) const {
  return records_.count(tensor.storage().unsafeGetStorageImpl()) != 0;
}

Place StorageTable::find(const at::TensorBase& tensor) {
  auto found = records_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == records_.end()) return {};
  const int64_t begin = beginByte(tensor);
  const int64_t end = endByte(tensor);
  const auto size = static_cast<int64_t>(tensor.element_size());
  // A tensor without elements may lie anywhere, also behind the end.
  if (begin == end && !found->second.segments.empty()) return {&found->second.segments.front(), 0};
  for (Segment& segment : found->second.segments) {
    if (segment.begin <= begin && end <= segment.end && (begin - segment.begin) % size == 0)
      return {&segment, (begin - segment.begin) / size};
  }
  return {};
}

StorageTable::Record& StorageTable::record(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.storage();
  return records_.try_emplace(storage.unsafeGetStorageImpl(), Record{storage.getWeakStorageImpl(), {}}).first->second;
}

Segment& StorageTable::add(const at::TensorBase& tensor) {
  return record(tensor).segments.emplace_back(Segment{.begin = beginByte(tensor), .end = endByte(tensor)});
}

bool StorageTable::isFromOutside(const at::TensorBase& tensor) const {
  auto found = records_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == records_.end()) return true;
  for (const Segment& segment : found->second.segments)
    if (!segment.is_input || segment.written) return false;
  return true;
}

bool StorageTable::madeBy(const at::TensorBase& tensor, const ir::Graph& graph, ir::NodeId node) const {
  auto found = records_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == records_.end() || found->second.segments.empty()) return false;
  const Segment& first = found->second.segments.front();
  return !first.is_input && !first.written && graph.values[first.base].def == node;
}

// Dead records pin small blocks between large ones that malloc could otherwise join, so they must not pile up.
void StorageTable::sweep() {
  if (records_.size() < sweep_at_) return;
  std::erase_if(records_, [](const auto& entry) { return entry.second.storage.expired(); });
  sweep_at_ = records_.size() + records_.size() / 8 + 16;
}

void StorageTable::erase(const at::TensorBase& tensor) { records_.erase(tensor.storage().unsafeGetStorageImpl()); }

bool StorageTable::overlapsAnother(const at::TensorBase& tensor, const Segment& segment) const {
  auto found = records_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == records_.end()) return false;
  for (const Segment& other : found->second.segments)
    if (&other != &segment && other.begin < segment.end && segment.begin < other.end) return true;
  return false;
}

void StorageTable::snapshot(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.storage();
  auto [entry, is_new] = snapshots_.try_emplace(storage.unsafeGetStorageImpl());
  if (!is_new) return;
  entry->second.storage = storage;
  const auto* bytes = static_cast<const char*>(storage.data());
  entry->second.bytes.assign(bytes, bytes + storage.nbytes());
}

void StorageTable::restoreSnapshots() noexcept {
  for (auto& [impl, snapshot] : snapshots_)
    if (!snapshot.bytes.empty())
      std::memcpy(snapshot.storage.mutable_data(), snapshot.bytes.data(), snapshot.bytes.size());
  snapshots_.clear();
}

}  // namespace abele::capture
