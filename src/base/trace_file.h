// The record of tracing channels: one file per process in the Chrome trace event format (docs/tracing.md).
// Source: spec environment.md section 5; tools.md, PopVision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace abele {

/// Threads: safe.
class TraceFile {
 public:
  /// The file of this process, by PVTI_OPTIONS: {"enable": "true", "directory": "."}. Null if tracing is off. Once it
  /// is on, later changes of the variable have no effect. A forked child has its own file. program: names the process
  /// in the file; empty: the executable. Throws E0702 if the variable is not a JSON object, E0712 if the file cannot be
  /// made.
  static TraceFile* current(const std::string& program = {});
  /// The time of the clock of events, in ns.
  static int64_t now();
  ~TraceFile();

  /// Opens a file that also gets the events of the process until it is closed. Makes missing folders. Throws E0712.
  static std::shared_ptr<TraceFile> open(const std::string& path);

  const std::string& path() const;
  /// Adds one event. phase: 'X', 'i' or 'C' of the format; begin: from now(); fields: a JSON object with the additional
  /// fields of this phase. Throws E0708 for fields that the phase does not have.
  void add(const std::string& name, const std::string& channel, char phase, int64_t begin,
           const std::string& fields = "{}");
  /// Adds whole events of the format, each preceded by ",\n".
  void addLines(const std::string& lines);
  /// Completes the file and drops later events. The end of the process does the same.
  void close();

 private:
  struct Impl;
  static std::unique_ptr<TraceFile> make(const std::string& path, const std::string& program,
                                         const std::string& remedy);
  explicit TraceFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns true if any file records the events of this process. program, Throws: as TraceFile::current.
bool isTracing(const std::string& program = {});
/// Calls TraceFile::add of all these files.
void traceEvent(const std::string& name, const std::string& channel, char phase, int64_t begin,
                const std::string& fields = "{}");
/// Adds a span from `begin` until now.
void traceSpan(const std::string& name, const std::string& channel, int64_t begin);

/// A span from construction to destruction, if something records at its end. Does not throw.
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

}  // namespace abele
