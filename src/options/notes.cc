#include "options/notes.h"

#include <utility>

namespace abele::options {
namespace {

thread_local NoteListener::Listen* listener = nullptr;

}  // namespace

NoteListener::NoteListener(Listen listen) : listen_(std::move(listen)), before_(std::exchange(listener, &listen_)) {}

NoteListener::~NoteListener() { listener = before_; }

void note(log::Level level, const std::string& text) {
  if (listener != nullptr)
    (*listener)(level, text);
  else
    log::at(level, text);
}

}  // namespace abele::options
