// Locks memory against reads past torch's operators. Used by the parts of recorder.h. Read first: storage_table.h.
#pragma once

#include <vector>

#include <ATen/core/stack.h>

#include "capture/graph_writer.h"
#include "capture/storage_table.h"

namespace abele::capture {

/// Memory of values that may vary is locked while the program runs, except for operators that are recorded.
/// Threads: one at a time, as Recorder.
class Locks {
 public:
  /// outer: of the program around a nested one, or null.
  Locks(StorageTable* table, const GraphWriter* writer, Locks* outer)
      : table_(*table), writer_(*writer), outer_(outer) {}

  /// Does the storage hold a value that may differ between micro-batches?
  bool holdsVarying(const c10::StorageImpl* storage) const;
  /// Locks or unlocks a storage by what it holds now, here and in the programs around.
  void update(c10::StorageImpl* storage);
  /// Until lockAgain() nothing is locked, here and in the programs around.
  void unlockAll() noexcept;
  void lockAgain();
  /// Nothing of this program is locked any more.
  void release();

  /// The operands of one operator, unlocked while it is recorded.
  class Unlocked {
   public:
    /// The last num_arguments of the stack.
    Unlocked(Locks& locks, const torch::jit::Stack& stack, size_t num_arguments);
    /// Locks what the operator has made or written, too: the last num_results of the stack.
    void close(size_t num_results);
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    Locks& locks_;
    const torch::jit::Stack& stack_;
    // Weak: kernels may ask who else holds an operand.
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> operands_;
  };

 private:
  /// Unlocks the storage in all programs that know it. Returns whether one does.
  bool unlock(c10::StorageImpl* storage);

  StorageTable& table_;
  const GraphWriter& writer_;
  Locks* outer_;
  bool is_unlocked_ = false;  // unlockAll() was called
  bool is_released_ = false;
};

}  // namespace abele::capture
