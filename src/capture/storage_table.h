// Every storage seen while recording: the value that its bytes hold now, and the bytes to restore. Used by
// the parts of recorder.h.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "ir/graph.h"

namespace abele::capture {

/// Bytes [begin, end) of a storage that one base value describes. A storage that an operator made has one segment for
/// each result in it (with few exceptions one). A storage from outside has one for each of its tensors that was used.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  ir::ValueId base = ir::kNone;  // kNone: a model tensor that nothing has read yet
  ir::InputKind kind = ir::InputKind::kConstant;
  bool is_input = false;
  int32_t origin = ir::kNone;    // inputs: index in Request::model, or the argument's
  int32_t external = ir::kNone;  // index in Graph::externals once read
  bool written = false;
  std::unordered_multimap<int64_t, ir::ValueId> views;  // views of the current base so far, by offset
};

/// A place in a storage. Valid until the table changes.
struct Place {
  Segment* segment = nullptr;
  int64_t offset = 0;  // elements of the tensor's dtype from the segment's first byte
  explicit operator bool() const { return segment != nullptr; }
};

/// Threads: owner only.
class StorageTable {
 public:
  StorageTable() = default;
  ~StorageTable() {
    unlockAll();
    restoreSnapshots();
  }
  StorageTable(const StorageTable&) = delete;
  StorageTable& operator=(const StorageTable&) = delete;

  bool knows(const at::TensorBase& tensor) const;
  /// The segment that contains all bytes of the tensor; the place is empty if there is none.
  Place find(const at::TensorBase& tensor);
  /// The same segment if it is an input of the graph; else null.
  const Segment* inputOf(const at::TensorBase& tensor);
  /// Adds a segment for the tensor's bytes.
  Segment& add(const at::TensorBase& tensor);
  /// Whether the storage's bytes come unchanged from outside: no operator made the storage or wrote into it.
  bool isFromOutside(const at::TensorBase& tensor) const;
  /// Whether this node made the storage.
  bool madeBy(const at::TensorBase& tensor, const ir::Graph& graph, ir::NodeId node) const;
  /// Removes storages that have died, if there may be enough of them. Invalidates every Place.
  void sweep();
  /// Removes the storage, e.g. because an operator resized it.
  void erase(const at::TensorBase& tensor);
  /// Whether another segment shares bytes with this one.
  bool overlapsAnother(const at::TensorBase& tensor, const Segment& segment) const;

  /// Live storages that an operator made, except the given ones, and their base values.
  std::vector<std::pair<const c10::StorageImpl*, ir::ValueId>> aliveResults(
      const std::unordered_set<const c10::StorageImpl*>& except) const;
  /// Segments of a storage; null if the storage is not known.
  const std::vector<Segment>* segmentsOf(const c10::StorageImpl* storage) const;
  /// Locked memory has no address: torch throws kLockedRead (annotate.h) on any request for it, on any thread, in C++
  /// and in Python (data_ptr, accessors, numpy, DLPack, pickle, the operators of another thread). Only memory that the
  /// program has made and private copies of arguments are locked, never memory from outside. Requires: the storage is
  /// known.
  void setLocked(c10::StorageImpl* storage, bool locked);
  void unlockAll() noexcept { lockAll(false); }
  /// Locks again what unlockAll unlocked.
  void lockAgain() { lockAll(true); }

  /// Notes that code outside torch has the address of the memory. Requires: the storage is known.
  void expose(const at::TensorBase& tensor);
  bool isExposed(const at::TensorBase& tensor) const;

  /// Copies the bytes of the tensor's storage, once per storage.
  void snapshot(const at::TensorBase& tensor);
  /// Restores all copied bytes.
  void restoreSnapshots() noexcept;

 private:
  struct Record {
    // Weak: the memory is freed as in eager, but its address is not reused before sweep() removes the record.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::vector<Segment> segments;
    std::multimap<int64_t, size_t> by_begin;  // index of each segment
    int64_t longest = 0;                      // bytes of the longest segment
    bool is_locked = false;
    bool is_exposed = false;
  };
  struct Snapshot {
    c10::Storage storage;
    std::vector<char> bytes;
    c10::DataPtr on_device = {};  // replaces bytes for memory of an accelerator
  };
  Record& record(const at::TensorBase& tensor);
  const Record* recordOf(const c10::StorageImpl* storage) const;
  void lockAll(bool locked);
  static bool isFromOutside(const Record& record);

  std::unordered_map<const c10::StorageImpl*, Record> records_;
  size_t sweep_at_ = 64;  // number of records at which sweep() looks again
  std::unordered_map<const c10::StorageImpl*, Snapshot> snapshots_;
};

/// First byte of the tensor in its storage; endByte: one past the last.
int64_t beginByte(const at::TensorBase& tensor);
int64_t endByte(const at::TensorBase& tensor);

}  // namespace abele::capture
