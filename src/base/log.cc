#include "base/log.h"

#include <atomic>
#include <cctype>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

// Header-only, so that our library needs no version of spdlog or fmt at run time.
#define FMT_HEADER_ONLY
#define SPDLOG_HEADER_ONLY
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log_silence.h"
#include "base/utf8.h"

namespace abele::log {
namespace {

constexpr int kUnset = -1;

thread_local bool t_is_silent = false;  // see Silence

std::atomic<int> g_level{kUnset};
std::atomic<int> g_detail{static_cast<int>(Detail::kNone)};
std::atomic<int64_t> g_max_repeats{-1};
ProcessMutex g_repeats_mutex;
std::unordered_map<std::string, int64_t> g_repeats;  // line -> times it was written; guarded by g_repeats_mutex
ProcessMutex g_mutex;                                // guards the creation of g_logger, and its sinks' own locks
std::shared_ptr<spdlog::logger> g_logger;            // set once, before g_level leaves kUnset

// Level has spdlog's numbers.
static_assert(static_cast<int>(Level::kErr) == SPDLOG_LEVEL_ERROR && static_cast<int>(Level::kOff) == SPDLOG_LEVEL_OFF);

spdlog::sink_ptr makeSink(const std::string& destination) {
  if (destination.empty() || destination == "stderr") return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  if (destination == "stdout") return std::make_shared<spdlog::sinks::stdout_sink_mt>();
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(destination, /*truncate=*/true);
  } catch (const spdlog::spdlog_ex& error) {
    throwUser(ErrorCode::E0702, {.what = cat("POPTORCH_LOG_DEST is ", destination, ", which cannot be opened"),
                                 .found = error.what(),
                                 .expected = "stderr, stdout or a file that can be written"});
  }
}

int currentLevel() {
  int level = g_level.load(std::memory_order_acquire);
  if (level != kUnset) return level;
  configureFromEnvironment();
  return g_level.load(std::memory_order_acquire);
}

/// Returns false if the line was written too often; adds "..." to the last line that is written.
bool mayRepeat(std::string* line) {
  const int64_t limit = g_max_repeats.load(std::memory_order_relaxed);
  if (limit < 0) return true;
  std::lock_guard lock(g_repeats_mutex);
  const int64_t count = ++g_repeats[*line];
  if (count == limit) *line += " (not shown again)";
  return count <= limit;
}

}  // namespace

bool parseLevel(std::string_view text, Level* level, Detail* detail) {
  struct Row {
    std::string_view name, number;
    Level level;
    Detail detail = Detail::kNone;
  };
  static constexpr Row kLevels[] = {{"trace_all", "trace_all", Level::kTrace, Detail::kCalls},
                                    {"trace", "0", Level::kTrace, Detail::kGraphs},
                                    {"debug_ir", "debug_ir", Level::kDebug, Detail::kGraphs},
                                    {"debug", "1", Level::kDebug},
                                    {"info", "2", Level::kInfo},
                                    {"warn", "3", Level::kWarn},
                                    {"err", "4", Level::kErr},
                                    {"off", "6", Level::kOff}};
  std::string lower;
  for (char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Row& row : kLevels) {
    if (lower != row.name && lower != row.number) continue;
    *level = row.level;
    if (detail != nullptr) *detail = row.detail;
    return true;
  }
  return false;
}

void configureFromEnvironment() {
  std::lock_guard lock(g_mutex);
  if (g_logger != nullptr) return;
  Level level = Level::kWarn;
  Detail detail = Detail::kNone;
  std::string text = environmentText("POPTORCH_LOG_LEVEL");
  ABELE_REQUIRE(text.empty() || parseLevel(text, &level, &detail), E0702,
                {.what = cat("POPTORCH_LOG_LEVEL is ", text), .expected = "TRACE, DEBUG, INFO, WARN, ERR or OFF"});
  auto logger = std::make_shared<spdlog::logger>("poptorch:cpp", makeSink(environmentText("POPTORCH_LOG_DEST")));
  logger->set_pattern("[%H:%M:%S.%e] [%n] [%l] %v");
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  g_logger = std::move(logger);
  g_detail.store(static_cast<int>(detail), std::memory_order_relaxed);
  g_level.store(static_cast<int>(level), std::memory_order_release);
}

void setLevel(Level level, Detail detail) {
  currentLevel();
  g_detail.store(static_cast<int>(detail), std::memory_order_relaxed);
  g_level.store(static_cast<int>(level), std::memory_order_release);
}

Level level() { return static_cast<Level>(currentLevel()); }

bool shows(Detail detail) {
  currentLevel();
  return g_detail.load(std::memory_order_relaxed) <= static_cast<int>(detail);
}

void setMaxRepeats(int64_t max_lines) { g_max_repeats.store(max_lines, std::memory_order_relaxed); }

bool enabled(Level level) { return level != Level::kOff && static_cast<int>(level) >= currentLevel(); }

Silence::Silence() : before_(std::exchange(t_is_silent, true)) {}
Silence::~Silence() { t_is_silent = before_; }

void write(Level level, std::string_view message) {
  if (t_is_silent) return;
  currentLevel();
  std::string line = toUtf8(message);
  if (!mayRepeat(&line)) return;
  const std::lock_guard lock(g_mutex);
  g_logger->log(static_cast<spdlog::level::level_enum>(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace abele::log
