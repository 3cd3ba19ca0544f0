// Operators that other threads run on values of the program while it is captured. Used by storage_table.cc.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/TensorBase.h>

namespace abele::capture {

/// Locks memory for all threads (StorageTable::setLocked), or unlocks it.
void lockMemory(c10::StorageImpl& storage, bool locked);

/// Torch's lock of memory (StorageTable::setLocked) is open while an operator of the capture runs; meanwhile another
/// thread could read there. So its operators are noticed too, by torch's own observers of operators.
/// With the model's own tensors other threads may be at work: the lock opens for operators of those that were there
/// before the capture, and for their openMemory (annotate.h).
/// Threads: owner only; what it watches are all others, except those that take part in a capture.
class ThreadWatch {
 public:
  struct Finding;

  /// source_location: the user's line, asked for on the other thread.
  explicit ThreadWatch(std::function<std::string()> source_location);
  ~ThreadWatch();
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;

  void add(const c10::StorageImpl* storage);
  void remove(const c10::StorageImpl* storage);
  /// Locks the memory of a tensor of the model for all that read it past torch's operators, or unlocks it.
  static void setLocked(c10::StorageImpl* storage, bool locked);
  /// Did an operator of a thread that was there before make it of the model's memory, during this capture?
  static bool isMadeElsewhere(const at::Tensor& tensor);
  /// "aten::mul, train.py:88": the first operator of another thread that computed with what is watched.
  std::optional<std::string> found() const;

 private:
  std::shared_ptr<Finding> finding_;  // shared: another thread may still write it when the capture ends
};

/// The capture that runs on this thread, for those who work for it; null: none.
std::shared_ptr<ThreadWatch::Finding> captureOfThread();

/// While it lives, this thread works for what a capture runs, as if the capture had started it: no memory opens for it,
/// and the random numbers that it draws are noticed.
class WorksFor {
 public:
  explicit WorksFor(std::shared_ptr<ThreadWatch::Finding> capture);
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;

 private:
  std::shared_ptr<ThreadWatch::Finding> before_;
};

}  // namespace abele::capture
