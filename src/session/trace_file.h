// What tracing channels record: a file of the Chrome trace event format for each process (docs/tracing.md).
// Source: spec environment.md section 5; tools.md, PopVision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace abele::host {

/// Threads: safe.
class TraceFile {
 public:
  /// That of this process, as PVTI_OPTIONS asks: {"enable": "true", "directory": "."}. Null where tracing is off; once
  /// on it stays on. A forked child has one of its own. program: names the process in the file; empty: the executable.
  /// Throws E0702 where the variable is no JSON object, E0712 where the file cannot be made.
  static TraceFile* current(const std::string& program = {});
  /// ns of the clock that events are timed by.
  static int64_t now();
  ~TraceFile();

  /// A file that has the events of the process, too, until it is closed; missing folders are made. Throws E0712.
  static std::shared_ptr<TraceFile> open(const std::string& path);

  const std::string& path() const;
  /// One event. phase: of the format, 'X', 'i' or 'C'; begin: of now(); fields: a JSON object, the fields that the
  /// phase has beside the common ones. Throws E0708 for other fields.
  void add(const std::string& name, const std::string& channel, char phase, int64_t begin,
           const std::string& fields = "{}");
  /// Whole events of the format, each with ",\n" in front.
  void addLines(const std::string& lines);
  /// Completes the file; later events are lost. The end of the process does it too.
  void close();

 private:
  struct Impl;
  static std::unique_ptr<TraceFile> make(const std::string& path, const std::string& program,
                                         const std::string& remedy);
  explicit TraceFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Does any file want the events of this process? program, Throws: as TraceFile::current.
bool isTracing(const std::string& program = {});
/// TraceFile::add to all that do.
void traceEvent(const std::string& name, const std::string& channel, char phase, int64_t begin,
                const std::string& fields = "{}");
/// A span until now.
void traceSpan(const std::string& name, const std::string& channel, int64_t begin);

/// A span from its making to its end, where something records by then. Does not throw.
class TraceSpan {
 public:
  TraceSpan(const char* name, const char* channel);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_;
  const char* channel_;
  int64_t begin_;
};

}  // namespace abele::host
