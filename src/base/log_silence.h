// For compile/: a run that repeats one that has warned.
#pragma once

namespace abele::log {

/// While it lives, this thread's lines are not written. Nests.
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
