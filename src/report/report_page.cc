#include "report/report_page.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "report/operator_times.h"
#include "report/report_words.h"
#include "report/timeline.h"

namespace abele::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTemplate =
#include "report/report_page.inc"
    ;

struct Parts {
  const TraceTracks* trace = nullptr;
  const session::SessionReport* report = nullptr;
  Json memory = nullptr;
  std::string explain = {};
  std::vector<Advice> advice = {};
  OperatorTimes times = {};
};

/// What it returns; nothing of a program that knows no such thing (E0705).
template <class Call>
auto where(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const UserError& error) {
    if (error.code() != ErrorCode::E0705) throw;
    return {};
  }
}

Json figuresOf(const Parts& parts) {
  Json figures = Json::array();
  const auto add = [&](const std::string& value, const char* what) { figures.push_back({value, what}); };
  if (const session::SessionReport* report = parts.report; report != nullptr && report->step_ns != 0) {
    std::set<int> devices;
    for (const session::SessionReport::Stage& stage : report->stages) devices.insert(stage.device);
    add(printed("%.4g ms", static_cast<double>(report->step_ns) / 1e6), "last step");
    add(printed("%.0f %%", 100 * (1 - report->bubble)), "of the devices' time is work");
    add(cat(devices.size()), "devices");
    add(report->schedule, "schedule");
    add(printed("%.3g s", report->capture_s + report->compile_s), "capture and compilation");
  } else if (parts.trace != nullptr) {
    if (const std::vector<double> calls = parts.trace->calls(); !calls.empty()) {
      const double mean = std::accumulate(calls.begin(), calls.end(), 0.0) / static_cast<double>(calls.size());
      add(printed("%.4g ms", mean / 1e3), "a call");
      add(cat(calls.size()), "traced calls");
      add(cat(parts.trace->devices("measured").size()), "devices");
    }
  }
  if (!parts.memory.is_null()) {
    double most = 0;
    for (const Json& device : parts.memory["devices"]) most = std::max(most, device["peak_bytes"].get<double>());
    add(bytesText(most, 3), "fullest device");
  }
  return figures;
}

double rounded(double us) { return std::round(us * 1e3) / 1e3; }

/// What each track did, by action, the longest first.
Json actionsOf(const TraceTracks& trace) {
  struct Action {
    std::string name;
    int64_t count = 0;
    double us = 0, most = 0;
  };
  Json all = Json::array();
  for (const TraceTrack& track : trace.tracks) {
    if (track.isPredicted()) continue;
    std::vector<Action> actions;
    std::map<std::string, size_t> number;
    for (const RecordedSpan& span : track.spans) {
      const auto [own, is_new] = number.emplace(span.action(), actions.size());
      if (is_new) actions.push_back({own->first});
      Action& action = actions[own->second];
      ++action.count;
      action.us += span.length;
      action.most = std::max(action.most, span.length);
    }
    std::ranges::stable_sort(actions, std::greater(), &Action::us);
    for (const Action& action : actions)
      all.push_back({{"track", track.label},
                     {"name", action.name},
                     {"count", action.count},
                     {"us", rounded(action.us)},
                     {"most", rounded(action.most)}});
  }
  return all;
}

/// As rows of a table. The many that take least are one row.
Json sharesOf(const std::vector<TimeShare>& shares) {
  constexpr size_t kMost = 60;
  TimeShare rest{.name = cat("(", shares.size() - std::min(shares.size(), kMost), " others)")};
  Json rows = Json::array();
  const auto add = [&](const TimeShare& share) {
    std::array<double, 4> us = share.us;
    for (double& each : us) each = rounded(each);
    rows.push_back({{"name", share.name}, {"count", share.count}, {"us", us}});
  };
  for (size_t i = 0; i < shares.size(); ++i) {
    if (i < kMost) {
      add(shares[i]);
      continue;
    }
    rest.count += shares[i].count;
    for (size_t d = 0; d < rest.us.size(); ++d) rest.us[d] += shares[i].us[d];
  }
  if (shares.size() > kMost) add(rest);
  return rows;
}

/// Texts by number.
class Numbers {
 public:
  size_t of(const std::string& text) {
    const auto [own, is_new] = number_.emplace(text, texts.size());
    if (is_new) texts.push_back(text);
    return own->second;
  }
  Json texts = Json::array();

 private:
  std::map<std::string, size_t> number_;
};

/// The spans of a track as columns.
Json columnsOf(const TraceTrack& track, Numbers& names, Numbers& kinds) {
  Json begin = Json::array(), length = Json::array(), name = Json::array(), kind = Json::array(), depth = Json::array(),
       part = Json::array();
  std::vector<double> open_until;
  bool is_deep = false, has_parts = false;
  for (const RecordedSpan& span : track.spans) {
    while (!open_until.empty() && open_until.back() <= span.begin + 1e-3) open_until.pop_back();
    is_deep = is_deep || !open_until.empty();
    depth.push_back(std::min<size_t>(open_until.size(), 2));
    open_until.push_back(span.end());
    begin.push_back(rounded(span.begin));
    length.push_back(rounded(span.length));
    name.push_back(names.of(span.name));
    kind.push_back(kinds.of(span.kind));
    part.push_back(names.of(span.part));
    has_parts = has_parts || !span.part.empty();
  }
  Json columns = {{"group", track.group}, {"label", track.label}, {"begin", begin},
                  {"length", length},     {"name", name},         {"kind", kind}};
  if (is_deep) columns["depth"] = depth;
  if (has_parts) columns["part"] = part;
  return columns;
}

void replaceAll(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

void write(const std::string& path, const PageTitle& title, const Parts& parts) {
  Json advice = Json::array(), options = Json::array(), tracks = Json::array();
  for (const Advice& each : parts.advice)
    advice.push_back({{"what", each.what},
                      {"how", each.how},
                      {"us", each.us},
                      {"gain", printed("%.0f %% less a micro-batch", 100 * each.gain)}});
  for (const auto& [name, value] : title.options) options.push_back({name, value});
  Numbers names, kinds;
  if (parts.trace != nullptr)
    for (const TraceTrack& track : parts.trace->tracks) tracks.push_back(columnsOf(track, names, kinds));
  const Json data = {{"title", title.title},
                     {"made", cat("Abele ", versionText(), ", ", now())},
                     {"figures", figuresOf(parts)},
                     {"facts", factsOf(parts.trace, parts.report, parts.memory)},
                     {"advice", advice},
                     {"memory", parts.memory},
                     {"explain", parts.explain},
                     {"options", options},
                     {"operators", sharesOf(parts.times.operators)},
                     {"layers", sharesOf(parts.times.layers)},
                     {"actions", parts.trace == nullptr ? Json::array() : actionsOf(*parts.trace)},
                     {"names", names.texts},
                     {"kinds", kinds.texts},
                     {"tracks", tracks}};
  std::string text = data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  replaceAll(text, "</", "<\\/");  // in a script element only this could end it
  replaceAll(text, "<!--", "<\\!--");
  std::string page = kTemplate;
  static constexpr std::string_view kPlace = "@DATA@";
  page.replace(page.find(kPlace), kPlace.size(), text);
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::error_code ignored;  // writing says what is wrong
    std::filesystem::create_directories(folder, ignored);
  }
  writeWholeFile(path, page);
}

/// The last call alone.
TraceTracks lastCall(session::Session& session, const std::string& kind) {
  std::string events;
  Timeline timeline([&](const std::string& lines) { events += lines; }, kind);
  timeline.note(session);
  timeline.predict(session);
  return TraceTracks::of(cat("{\"traceEvents\": [", events.substr(1), "]}"), "the last call");
}

}  // namespace

void writeReportPage(const std::string& path, session::Session& session, const PageTitle& title) {
  const session::SessionReport report = session.report();
  std::optional<TraceTracks> trace;
  if (report.step_ns != 0) trace = lastCall(session, title.kind);
  Parts parts{.trace = trace ? &*trace : nullptr, .report = &report};
  if (!report.from_cache) {
    parts.memory = where([&] { return Json::parse(plan::memoryJson(session.memoryReport())); });
    parts.explain = where([&] { return session.explain(); });
    parts.times = where([&] { return operatorTimes(session); });
    if (report.step_ns != 0) parts.advice = where([&] { return adviceOf(session, title.front_ns); });
  }
  write(path, title, parts);
}

void writeTracePage(const std::string& path, const std::string& trace) {
  const TraceTracks tracks = TraceTracks::read(trace);
  write(path, {.title = std::filesystem::path(trace).filename().string(), .kind = ""}, {.trace = &tracks});
}

std::vector<std::string> factsOf(const session::Session& session) {
  const session::SessionReport report = session.report();
  return factsOf(nullptr, &report, nullptr);
}

}  // namespace abele::report
