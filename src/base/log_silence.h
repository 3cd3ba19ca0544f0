// For compile/: avoids the same warnings twice when it runs something a second time.
#pragma once

namespace abele::log {

/// While an object lives, this thread writes no lines. Objects nest.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  const bool before_;
};

}  // namespace abele::log
