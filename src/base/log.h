// For every layer: a line on stderr (or POPTORCH_LOG_DEST) for people who asked for it with POPTORCH_LOG_LEVEL.
// Form: "[HH:MM:SS.mmm] [poptorch:cpp] [level] message". Source: spec environment.md section 2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/cat.h"

namespace abele::log {

enum class Level : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarn = 3, kErr = 4, kOff = 6 };

/// What the internal levels DEBUG_IR and TRACE_ALL (and all below them) add to their neighbours.
enum class Detail : int { kCalls = 0, kGraphs = 1, kNone = 2 };

/// TRACE, DEBUG, INFO, WARN, ERR, OFF in any case, or their numbers; the internal TRACE_ALL (TRACE, and the begin and
/// end of every call of a session) and DEBUG_IR (DEBUG, and compiled graphs). False when the text is none of them.
bool parseLevel(std::string_view text, Level* level, Detail* detail = nullptr);

/// Reads POPTORCH_LOG_LEVEL (default WARN) and POPTORCH_LOG_DEST (stderr, stdout or a file, truncated). Called by the
/// first use of any other function here, but callers who want errors early call it themselves.
/// Throws E0702 for a level that does not exist or a file that cannot be opened.
void configureFromEnvironment();

void setLevel(Level level, Detail detail = Detail::kNone);
Level level();
/// True when the level shows so much detail.
bool shows(Detail detail);
/// The same line is written at most so often; the last time says so. Negative: no limit, which is the default.
void setMaxRepeats(int64_t max_lines);
/// Threads: safe. Costs one atomic load.
bool enabled(Level level);
/// Writes whether or not the level is enabled. Threads: safe.
void write(Level level, std::string_view message);

template <class... Parts>
void at(Level level, const Parts&... parts) {
  if (enabled(level)) write(level, cat(parts...));
}
template <class... Parts>
void trace(const Parts&... parts) {
  at(Level::kTrace, parts...);
}
template <class... Parts>
void debug(const Parts&... parts) {
  at(Level::kDebug, parts...);
}
template <class... Parts>
void info(const Parts&... parts) {
  at(Level::kInfo, parts...);
}
template <class... Parts>
void warn(const Parts&... parts) {
  at(Level::kWarn, parts...);
}
template <class... Parts>
void err(const Parts&... parts) {
  at(Level::kErr, parts...);
}

/// Says when a call begins and ends, at level TRACE_ALL.
class CallScope {
 public:
  explicit CallScope(const char* name) : name_(shows(Detail::kCalls) ? name : nullptr) {
    if (name_ != nullptr) write(Level::kTrace, cat(name_, " begins"));
  }
  ~CallScope() {
    if (name_ != nullptr) write(Level::kTrace, cat(name_, " ends"));
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  const char* name_;
};

}  // namespace abele::log
