// What several processes write together: each its own part, and nobody goes on before all have come as far.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "session/session.h"

namespace abele::host {

class Together {
 public:
  /// session: null where there is one process. act: as runtime::Announcement has it. failed: what the others say of a
  /// process that could not; its what goes on from "process 1 ".
  Together(const Session* session, const char* act, Message failed)
      : session_(session), act_(act), failed_(std::move(failed)) {}

  /// A text that no other call has given, the same in all processes. All call it. Throws E0713, E0606.
  std::string mark() const;
  /// Throws what step() throws; where it threw in another process alone: E0712. All call it. Throws E0713, E0606.
  void operator()(const std::function<void()>& step) const;

 private:
  std::vector<uint64_t> meet(uint64_t word) const;

  const Session* session_;
  const char* act_;
  Message failed_;
};

}  // namespace abele::host
