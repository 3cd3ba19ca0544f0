// Messages of setters and of option checks. They go to the log, or to a listener on this thread.
#pragma once

#include <functional>
#include <string>

#include "base/cat.h"
#include "base/log.h"

namespace abele::options {

/// While an object lives, it gets the notes of this thread instead of the log. Python passes them to its logging.
class NoteListener {
 public:
  using Listen = std::function<void(log::Level, const std::string&)>;
  explicit NoteListener(Listen listen);
  ~NoteListener();
  NoteListener(const NoteListener&) = delete;
  NoteListener& operator=(const NoteListener&) = delete;

 private:
  Listen listen_;
  Listen* before_;
};

void note(log::Level level, const std::string& text);

}  // namespace abele::options
