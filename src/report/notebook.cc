#include "report/notebook.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "report/report_words.h"

namespace abele::report {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;
using Figures = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kMostSpans = 4000;              // in a drawing: a notebook keeps it as text
constexpr const char* kWaitingColour = "#8884";  // seen on light and dark ground
struct DirectionWord {
  const char *name, *colour, *word;
};
constexpr std::array<DirectionWord, 4> kDirectionWords = {{{"F", "#2f7bd6", "forward"},
                                                           {"B", "#1f8f5f", "backward"},
                                                           {"W", "#7a5bd0", "weight gradient"},
                                                           {"U", "#c77700", "update"}}};

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#x27;"; break;
      default: result += c;
    }
  return result;
}

double numberIn(const Json& row, const char* name) { return row.at(name).get<double>(); }
std::string cell(const Json& value) { return escaped(value.is_string() ? value.get<std::string>() : value.dump()); }

std::string shareText(double share) { return printed("%.1f %%", 100 * share); }

std::string timeText(double ns) {
  if (ns >= 1e9) return printed("%.4g s", ns / 1e9);
  if (ns >= 1e6) return printed("%.4g ms", ns / 1e6);
  if (ns >= 1e3) return printed("%.4g &micro;s", ns / 1e3);
  return printed("%.4g ns", ns);
}

std::string bar(double share) {
  return cat("<div style=\"width:8em;background:", kWaitingColour, "\" title=\"", shareText(share), "\">",
             printed("<div style=\"width:%.1f%%;background:%s\">", 100 * std::clamp(share, 0.0, 1.0),
                     kDirectionWords[0].colour),
             "&nbsp;</div></div>");
}

std::string table(const Row& header, const std::vector<Row>& rows) {
  std::string all = "<table><thead><tr>";
  for (const std::string& name : header) all += cat("<th>", name, "</th>");
  all += "</tr></thead><tbody>";
  for (const Row& row : rows) {
    all += "<tr>";
    for (const std::string& cell : row) all += cat("<td>", cell, "</td>");
    all += "</tr>";
  }
  return all + "</tbody></table>";
}

std::string box(const std::string& title, const Figures& figures, const std::string& body) {
  std::string said;
  for (const auto& [name, value] : figures) said += cat(said.empty() ? "" : " &middot; ", name, " <b>", value, "</b>");
  return cat("<div><div><b>", title, "</b></div><div>", said, "</div>", body, "</div>");
}

std::string rectangle(const Json& span, size_t row, double scale) {
  const auto kind = std::ranges::find(kDirectionWords, span.at("cat").get<std::string>(), &DirectionWord::name);
  const double us = numberIn(span, "dur");
  return cat(
      printed("<rect x=\"%.2f\" y=\"%zu\" width=\"%.2f\" height=\"15\" fill=\"%s\">", scale * numberIn(span, "ts"),
              18 * row, std::max(scale * us - 0.3, 0.3), kind == kDirectionWords.end() ? "#888" : kind->colour),
      "<title>", cell(span.at("name")), ": ", timeText(1000 * us), "</title></rect>");
}

/// The step, a line for each device; nothing where it has too many actions.
std::string drawing(const Json& trace) {
  std::vector<const Json*> spans;
  std::map<int64_t, size_t> rows;  // by track
  std::set<std::string> kinds;
  double end = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    spans.push_back(&event);
    rows[event.at("tid").get<int64_t>()] = 0;
    kinds.insert(event.at("cat").get<std::string>());
    end = std::max(end, numberIn(event, "ts") + numberIn(event, "dur"));
  }
  if (spans.empty() || spans.size() > kMostSpans) return "";
  size_t next = 0;
  for (auto& [track, row] : rows) row = next++;
  std::string drawn, legend;
  for (const Json* span : spans)
    drawn += rectangle(*span, rows.at(span->at("tid").get<int64_t>()), 1000 / (end == 0 ? 1 : end));
  for (const DirectionWord& kind : kDirectionWords)
    if (kinds.contains(kind.name))
      legend += cat(legend.empty() ? "" : " ", "<span style=\"color:", kind.colour, "\">&#9632;</span> ", kind.word);
  const size_t height = 18 * rows.size();
  return cat("<svg viewBox=\"0 0 1000 ", height, "\" width=\"100%\" height=\"", height,
             "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"the step, a line for each device\" "
             "style=\"background:",
             kWaitingColour, ";max-width:1000px\">", drawn, "</svg><div>", legend, "</div>");
}

}  // namespace

std::string notebookOfReport(const std::string& title, const Json& report, const std::vector<std::string>& facts) {
  const double step_ns = numberIn(report, "step_ns");
  Figures figures;
  if (step_ns != 0) figures = {{"step", timeText(step_ns)}, {"bubble", shareText(numberIn(report, "bubble"))}};
  figures.emplace_back("schedule", cell(report.at("schedule")));
  figures.emplace_back("capture and compilation",
                       timeText(1e9 * (numberIn(report, "capture_s") + numberIn(report, "compile_s"))));
  std::vector<Row> rows;
  for (const Json& stage : report.at("stages"))
    rows.push_back({cell(stage.at("name")), cell(stage.at("device")), timeText(numberIn(stage, "busy_ns")),
                    timeText(numberIn(stage, "waiting_ns")),
                    step_ns == 0 ? "" : bar(numberIn(stage, "busy_ns") / step_ns),
                    bytesText(numberIn(stage, "peak_bytes"), 4)});
  std::string said;
  for (const std::string& fact : facts) said += cat("<li>", escaped(fact), "</li>");
  return box(escaped(title), figures,
             table({"stage", "device", "busy", "waiting", "of the step", "peak memory"}, rows)) +
         (said.empty() ? "" : cat("<ul>", said, "</ul>"));
}

std::string notebookOfModel(const std::string& title) {
  return box(escaped(title), {}, "<p>Not compiled yet: the first call does it.</p>");
}

std::string notebookOfSimulation(const Json& simulation, const Json& trace) {
  double fullest = 0;
  std::vector<Row> rows;
  for (const Json& worker : simulation.at("workers")) {
    const double peak_bytes = numberIn(worker, "peak_bytes");
    fullest = std::max(fullest, peak_bytes);
    rows.push_back({cell(worker.at("device")), timeText(numberIn(worker, "busy_ns")),
                    timeText(numberIn(worker, "idle_ns")), bar(numberIn(worker, "utilisation")),
                    bytesText(peak_bytes, 4) + (worker.value("fits", true) ? "" : ", too much")});
  }
  const Figures figures = {{"step", timeText(numberIn(simulation, "step_ns"))},
                           {"bubble", shareText(numberIn(simulation, "bubble"))},
                           {"fullest device", bytesText(fullest, 4)}};
  return box("Simulated step", figures,
             drawing(trace) + table({"device", "busy", "waiting", "of the time", "peak memory"}, rows));
}

}  // namespace abele::report
