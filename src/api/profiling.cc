#include "abele/profiling.h"

#include "base/error.h"
#include "base/log.h"
#include "base/trace_file.h"

namespace abele::profiling {

Tracepoint::Tracepoint(std::string channel, std::string name) : channel_(std::move(channel)), name_(std::move(name)) {
  if (isTracing()) begin_ = TraceFile::now();
}
Tracepoint::Tracepoint(Tracepoint&& other) noexcept
    : channel_(std::move(other.channel_)), name_(std::move(other.name_)), begin_(std::exchange(other.begin_, -1)) {}
Tracepoint::~Tracepoint() {
  if (begin_ < 0) return;
  try {
    traceSpan(name_, channel_, begin_);
  } catch (const Error& error) {  // a process that was forked off inside the span cannot create its file
    log::warn("a span was not recorded: ", error.what());
  }
}

}  // namespace abele::profiling
