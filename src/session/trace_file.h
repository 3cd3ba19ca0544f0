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

  const std::string& path() const;
  /// One event. phase: of the format, 'X', 'i' or 'C'; begin: of now(); fields: a JSON object, the fields that the
  /// phase has beside the common ones. Throws E0708 for other fields.
  void add(const std::string& name, const std::string& channel, char phase, int64_t begin,
           const std::string& fields = "{}");
  /// A span until now.
  void addSpan(const std::string& name, const std::string& channel, int64_t begin);
  /// Completes the file; later events are lost. The end of the process does it too.
  void close();

 private:
  struct Impl;
  explicit TraceFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::host
