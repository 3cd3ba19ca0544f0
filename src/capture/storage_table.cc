#include "capture/storage_table.h"

#include <algorithm>
#include <cstring>

#include <c10/core/DeviceGuard.h>
#include <torch/headeronly/version.h>

#include "capture/annotate.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
// Torch before 2.13 locks a storage, and has no call to unlock it. An explicit instantiation may name private members.
void unlock(c10::StorageImpl& storage);
template <auto kThrows, auto kRefresh>
struct Unlocking {
  friend void unlock(c10::StorageImpl& storage) {
    storage.*kThrows = false;
    (storage.*kRefresh)();
  }
};
template struct Unlocking<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                          &c10::StorageImpl::refresh_has_data_ptr_check>;
#else
void unlock(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

// Torch's check of storages whose bytes a subclass holds elsewhere. Despite the name nothing is released.
void lockMemory(c10::StorageImpl& storage, bool locked) {
  if (locked)
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kLockedRead);
  else
    unlock(storage);
}

}  // namespace

int64_t beginByte(const at::TensorBase& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

int64_t endByte(const at::TensorBase& tensor) { return beginByte(tensor) + typeOf(tensor).extentBytes(); }

bool StorageTable::knows(const at::TensorBase& tensor) const {
  return recordOf(tensor.storage().unsafeGetStorageImpl()) != nullptr;
}

Place StorageTable::find(const at::TensorBase& tensor) {
  auto found = records_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == records_.end()) return {};
  const int64_t begin = beginByte(tensor);
  const int64_t end = endByte(tensor);
  const auto size = static_cast<int64_t>(tensor.element_size());
  // A tensor without elements may lie anywhere, also behind the end.
  if (begin == end && !found->second.segments.empty()) return {&found->second.segments.front(), 0};
  Record& record = found->second;
  size_t first = record.segments.size();  // the oldest segment that contains the range
  for (auto it = record.by_begin.upper_bound(begin); it != record.by_begin.begin();) {
    --it;
    if (it->first + record.longest < end) break;
    const Segment& segment = record.segments[it->second];
    if (end <= segment.end && (begin - segment.begin) % size == 0) first = std::min(first, it->second);
  }
  if (first == record.segments.size()) return {};
  Segment& segment = record.segments[first];
  return {&segment, (begin - segment.begin) / size};
}

const Segment* StorageTable::inputOf(const at::TensorBase& tensor) {
  const Place place = find(tensor);
  return place && place.segment->is_input ? place.segment : nullptr;
}

const StorageTable::Record* StorageTable::recordOf(const c10::StorageImpl* storage) const {
  const auto found = records_.find(storage);
  return found == records_.end() ? nullptr : &found->second;
}

StorageTable::Record& StorageTable::record(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.storage();
  return records_
      .try_emplace(storage.unsafeGetStorageImpl(), Record{.storage = storage.getWeakStorageImpl(), .segments = {}})
      .first->second;
}

Segment& StorageTable::add(const at::TensorBase& tensor) {
  Record& of = record(tensor);
  const Segment segment{.begin = beginByte(tensor), .end = endByte(tensor)};
  of.by_begin.emplace(segment.begin, of.segments.size());
  of.longest = std::max(of.longest, segment.end - segment.begin);
  return of.segments.emplace_back(segment);
}

bool StorageTable::isFromOutside(const at::TensorBase& tensor) const {
  const std::vector<Segment>* segments = segmentsOf(tensor.storage().unsafeGetStorageImpl());
  return segments == nullptr ||
         std::ranges::all_of(*segments, [](const Segment& s) { return s.is_input && !s.written; });
}

bool StorageTable::madeBy(const at::TensorBase& tensor, const ir::Graph& graph, ir::NodeId node) const {
  const std::vector<Segment>* segments = segmentsOf(tensor.storage().unsafeGetStorageImpl());
  if (segments == nullptr || segments->empty()) return false;
  const Segment& first = segments->front();
  return !first.is_input && !first.written && graph.values[first.base].def == node;
}

// Dead records pin small blocks between large ones that malloc could otherwise join, so they must not pile up.
void StorageTable::sweep() {
  if (records_.size() < sweep_at_) return;
  std::erase_if(records_, [](const auto& entry) { return entry.second.storage.expired(); });
  sweep_at_ = records_.size() + records_.size() / 2 + 16;
}

void StorageTable::erase(const at::TensorBase& tensor) { records_.erase(tensor.storage().unsafeGetStorageImpl()); }

bool StorageTable::overlapsAnother(const at::TensorBase& tensor, const Segment& segment) const {
  const std::vector<Segment>* segments = segmentsOf(tensor.storage().unsafeGetStorageImpl());
  return segments != nullptr && std::ranges::any_of(*segments, [&](const Segment& other) {
           return &other != &segment && other.begin < segment.end && segment.begin < other.end;
         });
}

std::vector<std::pair<const c10::StorageImpl*, ir::ValueId>> StorageTable::aliveResults(
    const std::unordered_set<const c10::StorageImpl*>& except) const {
  std::vector<std::pair<const c10::StorageImpl*, ir::ValueId>> found;
  for (const auto& [storage, record] : records_) {
    if (record.storage.expired() || except.contains(storage)) continue;
    for (const Segment& segment : record.segments)
      if (!segment.is_input && segment.base != ir::kNone) found.emplace_back(storage, segment.base);
  }
  return found;
}

const std::vector<Segment>* StorageTable::segmentsOf(const c10::StorageImpl* storage) const {
  const Record* record = recordOf(storage);
  return record == nullptr ? nullptr : &record->segments;
}

bool StorageTable::isFromOutside(const Record& record) {
  return std::ranges::any_of(record.segments,
                             [](const Segment& s) { return s.is_input && s.kind != ir::InputKind::kArgument; });
}

void StorageTable::setLocked(c10::StorageImpl* storage, bool locked) {
  Record& record = records_.at(storage);
  if (isFromOutside(record)) return;
  record.is_locked = locked;
  lockMemory(*storage, locked);
}

void StorageTable::lockAll(bool locked) {
  for (auto& [impl, record] : records_)
    if (record.is_locked)
      if (const auto storage = record.storage.lock()) lockMemory(*storage, locked);
}

void StorageTable::expose(const at::TensorBase& tensor) { record(tensor).is_exposed = true; }

bool StorageTable::isExposed(const at::TensorBase& tensor) const {
  const Record* record = recordOf(tensor.storage().unsafeGetStorageImpl());
  return record != nullptr && record->is_exposed;
}

void StorageTable::snapshot(const at::TensorBase& tensor) {
  const c10::Storage& storage = tensor.storage();
  auto [entry, is_new] = snapshots_.try_emplace(storage.unsafeGetStorageImpl());
  if (!is_new) return;
  entry->second.storage = storage;
  if (!storage.device().is_cpu()) {
    const c10::DeviceGuard where_it_is(storage.device());  // an allocator works on the thread's current device
    entry->second.on_device = c10::GetAllocator(storage.device_type())->clone(storage.data(), storage.nbytes());
    return;
  }
  const auto* bytes = static_cast<const char*>(storage.data());
  entry->second.bytes.assign(bytes, bytes + storage.nbytes());
}

void StorageTable::restoreSnapshots() noexcept {
  for (auto& [impl, snapshot] : snapshots_)
    if (snapshot.on_device) {
      const c10::DeviceGuard where_it_is(snapshot.storage.device());
      c10::GetAllocator(snapshot.storage.device_type())
          ->copy_data(snapshot.storage.mutable_data(), snapshot.on_device.get(), snapshot.storage.nbytes());
    } else if (!snapshot.bytes.empty()) {
      std::memcpy(snapshot.storage.mutable_data(), snapshot.bytes.data(), snapshot.bytes.size());
    }
  snapshots_.clear();
}

}  // namespace abele::capture
