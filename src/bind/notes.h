// For bind/ only: what C++ has to say of options, models and arguments, to Python's logging.
#pragma once

#include "options/notes.h"

namespace abele::bind {

/// Notes of this thread go to Python's logging while it lives. Threads: any, with the GIL or without.
class PythonNotes {
 public:
  PythonNotes();

 private:
  host::NoteListener listener_;
};

}  // namespace abele::bind
