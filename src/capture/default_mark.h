// A mark in torch's default generator, which shows where forward puts its state back to. Used by draws.cc.
#pragma once

#include <map>
#include <optional>

#include "capture/random_stream.h"

namespace abele::capture {

/// Programs save the default generator's state and restore it (activation checkpointing). The capture does not
/// draw from it, so a mark in it says where in the capture's stream it stands: states hold the mark, draws of other
/// threads leave it, and no kernel looks at it. Nothing else of the generator changes. CPU only. Threads: owner only.
class DefaultMark {
 public:
  explicit DefaultMark(RandomStream* stream);
  /// The generator stays where the program and other threads have left it.
  ~DefaultMark();
  DefaultMark(const DefaultMark&) = delete;
  DefaultMark& operator=(const DefaultMark&) = delete;

  /// Moves the stream to where the program has put the generator back. False: the generator was seeded, or
  /// given a state from elsewhere; the stream stays where it is.
  bool follow();
  /// Marks where the stream stands now.
  void put();

 private:
  RandomStream& stream_;
  const std::optional<float> before_;
  float mark_ = 0;
  std::map<float, at::Generator> states_;  // the states of the stream, by mark
};

}  // namespace abele::capture
