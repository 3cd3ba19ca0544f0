#include "report/trace_tracks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/json_text.h"
#include "base/whole_file.h"

namespace abele::report {
namespace {

using Json = nlohmann::ordered_json;
using Track = std::pair<int64_t, int64_t>;  // the file's numbers of its group and of itself

struct NoTrace {
  std::string why;
};

/// The text without the lines that a program did not write any more, closed.
std::string closed(const std::string& text) {
  const size_t line = text.rfind('\n');
  if (line == std::string::npos) return "";
  const size_t last = text.find_last_not_of(" \t\r\n", line);
  if (last == std::string::npos) return "";
  return text.substr(0, text[last] == ',' ? last : last + 1) + "]}";
}

Json eventsOf(const std::string& text) {
  Json whole = boundedJson(text);
  if (whole.is_discarded()) whole = boundedJson(closed(text));
  if (!whole.is_object() || !whole.contains("traceEvents") || !whole["traceEvents"].is_array())
    throw NoTrace{"no JSON object with a list \"traceEvents\""};
  return std::move(whole["traceEvents"]);
}

double number(const Json& event, const char* key) {
  const Json found = event.value(key, Json());
  if (!found.is_number() || !std::isfinite(found.get<double>()))
    throw NoTrace{"a span without a number: " + event.dump()};
  return found.get<double>();
}

std::string text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

class Reader {
 public:
  void add(const Json& event) {
    const auto has = [&](const char* key, auto is) { return event.contains(key) && (event[key].*is)(); };
    const auto isInteger = [&](const char* key) { return event.contains(key) && event[key].is_number_integer(); };
    if (!event.is_object() || !has("name", &Json::is_string) || !has("ph", &Json::is_string) || !isInteger("pid") ||
        !isInteger("tid"))
      throw NoTrace{"no event: " + event.dump(-1, ' ', true, Json::error_handler_t::replace)};
    const Track track(event["pid"].get<int64_t>(), event["tid"].get<int64_t>());
    const std::string kind = text(event["ph"]), name = text(event["name"]);
    if (kind == "M") {
      if (!has("args", &Json::is_object)) throw NoTrace{"a name without a text"};
      names_[{track, name}] = text(event["args"].value("name", Json("")));
    }
    if (kind != "X") return;
    const double length = event.contains("dur") ? number(event, "dur") : 0;
    const bool has_part = has("args", &Json::is_object) && event["args"].contains("part");
    spans_[track].push_back({number(event, "ts"), length, name, text(event.value("cat", Json("other"))),
                             has_part ? text(event["args"]["part"]) : ""});
  }

  TraceTracks tracks() {
    double begin = std::numeric_limits<double>::infinity();
    for (const auto& [track, spans] : spans_)
      for (const RecordedSpan& span : spans) begin = std::min(begin, span.begin);
    TraceTracks result;
    for (auto& [track, spans] : spans_) {
      for (RecordedSpan& span : spans) span.begin -= begin;
      const auto order = [](const RecordedSpan& span) { return std::tuple(span.begin, -span.length); };
      std::ranges::stable_sort(spans, {}, order);
      const auto [group, own] = track;
      result.tracks.push_back({nameOf({group, 0}, "process_name", cat("process ", group)),
                               nameOf(track, "thread_name", cat("thread ", own)), std::move(spans)});
    }
    const auto isOfModel = [](const TraceTrack& track) {
      return track.isPredicted() || track.group.ends_with(", measured");
    };
    std::ranges::stable_partition(result.tracks, isOfModel);  // their group says what they are
    return result;
  }

 private:
  std::string nameOf(Track track, const char* what, const std::string& otherwise) const {
    const auto found = names_.find({track, what});
    return found == names_.end() || found->second.empty() ? otherwise : found->second;
  }

  std::map<std::pair<Track, std::string>, std::string> names_;
  std::map<Track, std::vector<RecordedSpan>> spans_;
};

bool isNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::string RecordedSpan::action() const {
  const size_t open = name.rfind(" [");
  const bool has_number = open != std::string::npos && name.ends_with(']') &&
                          isNumber(std::string_view(name).substr(open + 2, name.size() - open - 3));
  return has_number ? name.substr(0, open) : name;
}

TraceTracks TraceTracks::read(const std::string& path) { return of(readWholeFile(path), path); }

TraceTracks TraceTracks::of(const std::string& text, const std::string& path) {
  try {
    Reader reader;
    for (const Json& event : eventsOf(text)) reader.add(event);
    return reader.tracks();
  } catch (const NoTrace& no_trace) {
    throwUser(ErrorCode::E0501, {.what = "this is not a trace",
                                 .at = path,
                                 .found = no_trace.why,
                                 .expected = "a file from trace() of a model or from PVTI_OPTIONS"});
  }
}

std::vector<const TraceTrack*> TraceTracks::devices(std::string_view of) const {
  constexpr std::string_view kDevice = "device ";
  std::vector<const TraceTrack*> chosen;
  for (const TraceTrack& track : tracks) {
    const std::string_view number = std::string_view(track.label).substr(0, track.label.find(':'));
    if (track.group.ends_with(cat(", ", of)) && number.starts_with(kDevice) && isNumber(number.substr(kDevice.size())))
      chosen.push_back(&track);
  }
  return chosen;
}

std::vector<double> TraceTracks::calls() const {
  std::vector<double> lengths;
  for (const TraceTrack& track : tracks)
    for (const RecordedSpan& span : track.spans)
      if (track.isHost() && span.name.starts_with("call ")) lengths.push_back(span.length);
  return lengths;
}

}  // namespace abele::report
