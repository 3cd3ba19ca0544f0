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
  /// session: null for a single process. act: as in collective::Announcement. failed: the message in the other
  /// processes if one cannot write; its `what` continues a text such as "process 1 ".
  Together(const session::Session* session, const char* act, Message failed)
      : session_(session), act_(act), failed_(std::move(failed)) {}

  /// A text that no other call returns, the same in all processes. All call it. Throws E0713, E0606.
  std::string mark() const;
  /// Runs the step and rethrows its errors. If it failed only in another process, throws E0712. All call it. Throws
  /// E0713, E0606.
  void operator()(const std::function<void()>& step) const;

 private:
  std::vector<uint64_t> meet(uint64_t word) const;

  const session::Session* session_;
  const char* act_;
  Message failed_;
};

}  // namespace abele::files
