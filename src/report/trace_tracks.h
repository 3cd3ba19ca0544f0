// Reads a written trace (docs/tracing.md): spans by track, for reports.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace abele::report {

/// Times: us.
struct RecordedSpan {
  double begin, length;  // begin: since the first span of the trace
  std::string name, kind;
  std::string part;  // the part of the user's program that ran; empty: unknown

  double end() const { return begin + length; }
  /// The name without the number of its micro-batch.
  std::string action() const;
};

struct TraceTrack {
  std::string group, label;         // "training, measured", "device 0: first"
  std::vector<RecordedSpan> spans;  // by begin; of equal begins the longer first

  bool isHost() const { return label == "host"; }
  bool isPredicted() const { return group.ends_with(", predicted"); }
};

/// Tracks of models come first, then numbered tracks by number.
struct TraceTracks {
  /// Reads a file in Chrome's trace event format. Its last lines may be missing if the program did not end. Throws
  /// E0712, E0501.
  static TraceTracks read(const std::string& path);
  /// The same for the text of a file. path: for errors.
  static TraceTracks of(const std::string& text, const std::string& path);

  /// The tracks of devices only. of: "measured" or "predicted".
  std::vector<const TraceTrack*> devices(std::string_view of) const;
  /// The time of each traced call.
  std::vector<double> calls() const;

  std::vector<TraceTrack> tracks;
};

}  // namespace abele::report
