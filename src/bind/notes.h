// For bind/ only: sends C++ messages about options, models and arguments to Python's logging.
#pragma once

#include "options/notes.h"

namespace abele::bind {

/// While an object lives, notes of this thread go to Python's logging. Threads: any, with the GIL or without.
class PythonNotes {
 public:
  PythonNotes();

 private:
  options::NoteListener listener_;
};

}  // namespace abele::bind
