// A mark in torch's default generator, which shows to which position forward restores its state. Used by draws.cc.
#pragma once

#include <map>
#include <optional>

#include "capture/random_stream.h"

namespace abele::capture {

/// Programs save the default generator's state and restore it (activation checkpointing). The capture draws from its
/// own stream, and stores in the default generator a mark of its position in that stream. A saved state contains the
/// mark, draws of other threads do not change it, and no kernel reads it. Nothing else of the generator changes. CPU
/// only. Threads: owner only.
class DefaultMark {
 public:
  explicit DefaultMark(RandomStream* stream);
  /// Leaves the generator's position as the program and other threads have set it.
  ~DefaultMark();
  DefaultMark(const DefaultMark&) = delete;
  DefaultMark& operator=(const DefaultMark&) = delete;

  /// Moves the stream to the position to which the program has restored the generator. Returns false, and moves
  /// nothing, if the generator was seeded or got a state without a known mark.
  bool follow();
  /// Marks the present position of the stream.
  void put();

 private:
  RandomStream& stream_;
  const std::optional<float> before_;
  float mark_ = 0;
  std::map<float, at::Generator> states_;  // the states of the stream, by mark
};

}  // namespace abele::capture
