#include "base/trace_file.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"

namespace abele {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFlushedBytes = size_t{1} << 16;
constexpr double kNsPerUs = 1e3;

/// The folder of the file. Returns nothing if tracing is off.
std::optional<std::string> folderOfTraces() {
  const std::string text = environmentText("PVTI_OPTIONS");
  if (text.empty()) return std::nullopt;
  const Json options = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ABELE_REQUIRE(options.is_object(), E0702,
                {.what = cat("PVTI_OPTIONS is '", text, "', expected a JSON object such as {\"enable\":\"true\"}")});
  const Json enable = options.value("enable", Json("false"));
  const std::string is_on = enable.is_string() ? enable.get<std::string>() : enable.dump();
  if (is_on != "true" && is_on != "True" && is_on != "TRUE") return std::nullopt;
  const Json directory = options.value("directory", Json("."));
  ABELE_REQUIRE(directory.is_string(), E0702,
                {.what = "PVTI_OPTIONS does not name a folder",
                 .found = directory.dump(),
                 .expected = "\"directory\": \"path\""});
  return directory.get<std::string>();
}

std::string fileName() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[64];
  std::strftime(date, sizeof date, "%a_%b_%d_%H:%M:%S_%Y_GMT", &utc);
  return cat(date, "_", getpid(), ".pvti");
}

/// Replaces bytes that are not UTF-8, so that they do not end a program.
std::string textOf(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Files of TraceFile::open that are not closed; guarded by mutex().
std::vector<std::weak_ptr<TraceFile>>& opened() {
  static auto* files = new std::vector<std::weak_ptr<TraceFile>>;
  return *files;
}
std::atomic<size_t> num_opened = 0;

ProcessMutex& traceMutex() {
  static auto* const one = new ProcessMutex;
  return *one;
}
// Both are never freed, because the process may end while other threads trace.
std::unique_ptr<TraceFile>& held() {
  static auto* file = new std::unique_ptr<TraceFile>;
  return *file;
}

void closeAtTheEnd() {
  if (held()) held()->close();
  for (const std::weak_ptr<TraceFile>& one : opened())
    if (const std::shared_ptr<TraceFile> file = one.lock()) file->close();
}

}  // namespace

struct TraceFile::Impl {
  std::string path;
  int file = -1;
  std::string buffer;  // instead of stdio's buffer, which a forked child would write again
  std::mutex mutex;
  Home home;

  void flush() {
    for (size_t done = 0; done < buffer.size() && file >= 0;) {
      const ssize_t written = ::write(file, buffer.data() + done, buffer.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        log::warn("the trace ends early: ", std::strerror(errno));
        ::close(std::exchange(file, -1));
        break;
      }
      done += static_cast<size_t>(written);
    }
    buffer.clear();
  }
};

TraceFile::TraceFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceFile::~TraceFile() {
  if (impl_->home.isHere())
    close();
  else if (impl_->file >= 0)
    ::close(impl_->file);
}

TraceFile* TraceFile::current(const std::string& program) {
  const std::lock_guard lock(traceMutex());
  if (held() && held()->impl_->home.isHere()) return held().get();
  const std::optional<std::string> folder = folderOfTraces();
  if (!folder) return nullptr;
  held() = make((std::filesystem::path(*folder) / fileName()).string(), program,
                "name a folder that can be written in PVTI_OPTIONS");
  return held().get();
}

std::shared_ptr<TraceFile> TraceFile::open(const std::string& path) {
  std::error_code ignored;
  const std::shared_ptr<TraceFile> file =
      make(std::filesystem::absolute(path, ignored).string(), {}, "name a file in a folder that can be written");
  const std::lock_guard lock(traceMutex());
  std::erase_if(opened(), [](const std::weak_ptr<TraceFile>& one) { return one.expired(); });
  opened().push_back(file);
  num_opened = opened().size();
  return file;
}

std::unique_ptr<TraceFile> TraceFile::make(const std::string& path, const std::string& program,
                                           const std::string& remedy) {
  auto impl = std::make_unique<Impl>();
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  impl->path = path;
  impl->file = ::open(impl->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (impl->file < 0)
    throwUser(ErrorCode::E0712,
              {.what = cat("the trace cannot be written: ", std::strerror(errno)), .at = path, .remedy = remedy});
  ::fcntl(impl->file, F_SETFL, 0);  // the open refused a pipe without a reader; a slow reader is fine
  const Json name = {{"name", "process_name"},
                     {"ph", "M"},
                     {"pid", getpid()},
                     {"tid", 0},
                     {"args", {{"name", program.empty() ? program_invocation_short_name : program}}}};
  impl->buffer = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + textOf(name);
  static const int at_the_end = std::atexit(closeAtTheEnd);
  static_cast<void>(at_the_end);
  return std::unique_ptr<TraceFile>(new TraceFile(std::move(impl)));
}

int64_t TraceFile::now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const std::string& TraceFile::path() const { return impl_->path; }

void TraceFile::add(const std::string& name, const std::string& channel, char phase, int64_t begin,
                    const std::string& fields) {
  const Json more = Json::parse(fields, nullptr, /*allow_exceptions=*/false);
  ABELE_REQUIRE(more.is_object(), E0708, {.what = "the fields of an event are not a JSON object", .found = fields});
  Json event = {{"name", name},
                {"cat", channel},
                {"ph", std::string(1, phase)},
                {"ts", static_cast<double>(begin) / kNsPerUs},
                {"pid", getpid()},
                {"tid", syscall(SYS_gettid)}};
  event.update(more);
  addLines(",\n" + textOf(event));
}

void TraceFile::addLines(const std::string& lines) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->file < 0 || !impl_->home.isHere()) return;
  impl_->buffer += lines;
  if (impl_->buffer.size() >= kFlushedBytes) impl_->flush();
}

void TraceFile::close() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->file < 0 || !impl_->home.isHere()) return;
  impl_->buffer += "\n]}\n";
  impl_->flush();
  if (impl_->file >= 0) ::close(std::exchange(impl_->file, -1));
}

bool isTracing(const std::string& program) {
  if (TraceFile::current(program)) return true;
  if (num_opened == 0) return false;
  const std::lock_guard lock(traceMutex());
  std::erase_if(opened(), [](const std::weak_ptr<TraceFile>& one) { return one.expired(); });
  num_opened = opened().size();
  return num_opened > 0;
}

void traceEvent(const std::string& name, const std::string& channel, char phase, int64_t begin,
                const std::string& fields) {
  if (TraceFile* file = TraceFile::current()) file->add(name, channel, phase, begin, fields);
  if (num_opened == 0) return;
  std::vector<std::shared_ptr<TraceFile>> files;
  {
    const std::lock_guard lock(traceMutex());
    for (const std::weak_ptr<TraceFile>& one : opened()) files.push_back(one.lock());
  }
  for (const std::shared_ptr<TraceFile>& file : files)
    if (file) file->add(name, channel, phase, begin, fields);
}

void traceSpan(const std::string& name, const std::string& channel, int64_t begin) {
  const double us = static_cast<double>(TraceFile::now() - begin) / kNsPerUs;
  traceEvent(name, channel, 'X', begin, textOf(Json{{"dur", us}}));
}

TraceSpan::TraceSpan(const char* name, const char* channel)
    : name_(name), channel_(channel), begin_(TraceFile::now()) {}
TraceSpan::~TraceSpan() {
  try {
    if (isTracing()) traceSpan(name_, channel_, begin_);
  } catch (const std::exception& error) {  // a process that was forked off inside the span cannot create its file
    log::warn("a span was not recorded: ", error.what());
  }
}

}  // namespace abele
