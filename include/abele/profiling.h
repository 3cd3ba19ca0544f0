// For users of the library: spans of work in a trace that opens in Perfetto (docs/tracing.md). Spans are recorded while
// CompiledModel::trace records, and in the whole process if the environment variable PVTI_OPTIONS says so: {"enable":
// "true", "directory": "reports"}.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "abele/export.h"

namespace abele::profiling {

/// A span from construction to destruction. Threads: construct and destroy it on one thread.
class ABELE_API Tracepoint {
 public:
  /// Throws E0702 if PVTI_OPTIONS is not a JSON object, E0712 if the file cannot be written.
  Tracepoint(std::string channel, std::string name);
  ~Tracepoint();
  Tracepoint(Tracepoint&& other) noexcept;
  Tracepoint(const Tracepoint&) = delete;
  Tracepoint& operator=(const Tracepoint&) = delete;

 private:
  std::string channel_, name_;
  int64_t begin_ = -1;  // ns; -1: nothing is recorded
};

/// A named source of spans. Source: spec environment.md section 5.
class Channel {
 public:
  explicit Channel(std::string name) : name_(std::move(name)) {}
  /// Starts a span "<channel>.<name>", which lasts until the result ends:
  ///   const auto span = channel.tracepoint("load");
  [[nodiscard]] Tracepoint tracepoint(const std::string& name) const { return {name_, name_ + "." + name}; }
  /// A callable that runs `call`; each call is a span of this name.
  template <class Callable>
  auto instrument(const std::string& name, Callable call) const {
    return [channel = name_, name, call = std::move(call)](auto&&... arguments) mutable -> decltype(auto) {
      const Tracepoint span(channel, name);
      return call(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  std::string name_;
};

}  // namespace abele::profiling
