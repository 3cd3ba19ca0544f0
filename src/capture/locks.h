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
  /// outer: for a nested capture, the locks of the enclosing program; else null.
  Locks(StorageTable* table, const GraphWriter* writer, Locks* outer)
      : table_(*table), writer_(*writer), outer_(outer) {}

  /// Whether the storage holds a value that may differ between micro-batches.
  bool holdsVarying(const c10::StorageImpl* storage) const;
  /// Locks a storage if it holds such a value now, here or in an enclosing program; else unlocks it.
  void update(c10::StorageImpl* storage);
  /// Unlocks everything, here and in enclosing programs, until lockAgain().
  void unlockAll() noexcept;
  void lockAgain();
  /// Unlocks all memory of this program for good.
  void release();

  /// Unlocks the operands of one operator while it is recorded.
  class Unlocked {
   public:
    /// Unlocks the last num_arguments of the stack.
    Unlocked(Locks& locks, const torch::jit::Stack& stack, size_t num_arguments);
    /// Locks again, and also the operator's results: the last num_results of the stack.
    void close(size_t num_results);
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    Locks& locks_;
    const torch::jit::Stack& stack_;
    // Weak, because kernels may check how many references an operand has.
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> operands_;
  };

 private:
  /// Unlocks the storage in all programs that know it. Returns false if no program has it.
  bool unlock(c10::StorageImpl* storage);

  StorageTable& table_;
  const GraphWriter& writer_;
  Locks* outer_;
  bool is_unlocked_ = false;  // unlockAll() was called
  bool is_released_ = false;
};

}  // namespace abele::capture
