// A file that several processes write together: each writes its own part, and each step waits for all.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "session/session.h"

namespace abele::files {

class Together {
 public:
  /// session: null for a single process. act: as in collective::Announcement. failed: the error in the other processes
  /// if one cannot write; its `what` follows text such as "process 1 ".
  Together(const session::Session* session, const char* act, Message failed)
      : session_(session), act_(act), failed_(std::move(failed)) {}

  /// A text that is the same in all processes and different in every call. All processes call it. Throws E0713, E0606.
  std::string mark() const;
  /// Runs the step and rethrows its errors. Throws E0712 if it failed only in another process. All processes call it.
  /// Throws E0713, E0606.
  void operator()(const std::function<void()>& step) const;

 private:
  std::vector<uint64_t> meet(uint64_t word) const;

  const session::Session* session_;
  const char* act_;
  Message failed_;
};

}  // namespace abele::files
