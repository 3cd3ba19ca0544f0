// Writes a line to stderr (or POPTORCH_LOG_DEST) for users who set POPTORCH_LOG_LEVEL. Every layer uses it.
// Form: "[HH:MM:SS.mmm] [poptorch:cpp] [level] message". Source: spec environment.md section 2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/cat.h"

namespace abele::log {

enum class Level : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarn = 3, kErr = 4, kOff = 6 };

/// What the internal levels DEBUG_IR and TRACE_ALL add to DEBUG and TRACE. More detailed levels show it too.
enum class Detail : int { kCalls = 0, kGraphs = 1, kNone = 2 };

/// Reads TRACE, DEBUG, INFO, WARN, ERR or OFF in any case, or their numbers. The internal TRACE_ALL is TRACE with the
/// begin and end of every call of a session. The internal DEBUG_IR is DEBUG with compiled graphs. Returns false for any
/// other text.
bool parseLevel(std::string_view text, Level* level, Detail* detail = nullptr);

/// Reads POPTORCH_LOG_LEVEL (default WARN) and POPTORCH_LOG_DEST (stderr, stdout or a file, which is truncated). The
/// first use of any other function here calls it. Call it yourself to get its errors early. Throws E0702 for an unknown
/// level and for a file that cannot be opened.
void configureFromEnvironment();

void setLevel(Level level, Detail detail = Detail::kNone);
Level level();
/// True when the level shows this detail.
bool shows(Detail detail);
/// Limits how often the same line is written; the last copy is marked as the last. Negative means no limit, which is
/// the default.
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

/// Logs the beginning and the end of a call at level TRACE_ALL.
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
