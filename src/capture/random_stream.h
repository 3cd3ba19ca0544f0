// The random numbers of one capture, and where in the stream each operator draws. Used by draws.cc.
#pragma once

#include <cstdint>
#include <unordered_map>

#include <ATen/core/Generator.h>

namespace abele::capture {

/// Lends torch's default generator of a device to a capture: it starts from the given stream (or its own state), and
/// its state is put back at the end. Using the default one lets programs that save and restore its state (activation
/// checkpointing) draw the same numbers again; such operators get the same offset.
/// Threads: owner only; nothing else may draw from the default generator meanwhile.
class RandomStream {
 public:
  RandomStream(const at::Generator* start, c10::Device device);
  ~RandomStream();
  RandomStream(const RandomStream&) = delete;
  RandomStream& operator=(const RandomStream&) = delete;

  const at::Generator& generator() const { return generator_; }
  /// Do operators without an argument for a generator draw from the numbers at a known place, too? On accelerators the
  /// device puts the default generator there.
  bool hasOffsets() const { return !generator_.device().is_cpu(); }

  /// Call before an operator that may draw.
  void before();
  /// 32-bit draws (on accelerators: offsets) since before(), at most `limit`; -1 when the state is not that many draws
  /// further.
  int64_t drawsSince(int64_t limit) const;
  /// Puts the generator back to where before() found it.
  void rewind();
  /// Draws of the micro-batch before the operator at before(); -1 when the program moved the generator to a state that
  /// the stream has not been in.
  int64_t offset() const { return offset_; }
  /// The operator drew this many.
  void advance(int64_t draws);
  int64_t total() const { return total_; }

 private:
  at::Generator generator_;
  at::Generator saved_;  // the default generator's own state
  at::Generator before_;
  std::unordered_map<uint64_t, int64_t> offsets_;  // hash of an engine state -> draws before it
  int64_t offset_ = 0;
  int64_t total_ = 0;
};

}  // namespace abele::capture
