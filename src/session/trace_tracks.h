// A trace as it was written (docs/tracing.md), read back: spans by track, for reports.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace abele::host {

/// Times: us.
struct RecordedSpan {
  double begin, length;  // begin: since the first span of the trace
  std::string name, kind;
  std::string part;  // of the user's program that ran; empty: not said

  double end() const { return begin + length; }
  /// The name without the number of its micro-batch.
  std::string action() const;
};

struct TraceTrack {
  std::string group, label;         // "training, measured", "device 0: first"
  std::vector<RecordedSpan> spans;  // by begin, longer ones first

  bool isHost() const { return label == "host"; }
  bool isPredicted() const { return group.ends_with(", predicted"); }
};

/// Tracks of models first, then by the file's numbers.
struct TraceTracks {
  /// Of a file in Chrome's trace event format; the last lines may be missing, where the program did not end. Throws
  /// E0712, E0501.
  static TraceTracks read(const std::string& path);

  /// The tracks of devices alone; of: "measured" or "predicted".
  std::vector<const TraceTrack*> devices(std::string_view of) const;
  /// How long each traced call took.
  std::vector<double> calls() const;

  std::vector<TraceTrack> tracks;
};

}  // namespace abele::host
