// For every layer: a line on stderr (or POPTORCH_LOG_DEST) for people who asked for it with POPTORCH_LOG_LEVEL.
// Form: "[HH:MM:SS.mmm] [poptorch:cpp] [level] message". Source: spec environment.md section 2.
#pragma once

#include <string>
#include <string_view>

#include "base/cat.h"

namespace abele::log {

enum class Level : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarn = 3, kErr = 4, kOff = 6 };

/// TRACE, DEBUG, INFO, WARN, ERR, OFF in any case, or their numbers. False when the text is none of them.
bool parseLevel(std::string_view text, Level* level);

/// Reads POPTORCH_LOG_LEVEL (default WARN) and POPTORCH_LOG_DEST (stderr, stdout or a file, truncated). Called by the
/// first use of any other function here, but callers who want errors early call it themselves.
/// Throws E0702 for a level that does not exist or a file that cannot be opened.
void configureFromEnvironment();

void setLevel(Level level);
Level level();
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

}  // namespace abele::log
