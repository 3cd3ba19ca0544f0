// gc-monitor: the devices and their owners, in the form of Graphcore's tool. Devices are emulated by some cores of this
// machine, so temperatures are N/A. Source: spec tools.md.
#include <CLI/CLI.hpp>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/version.h"
#include "monitor.h"
#include "registry/attributes.h"
#include "tool.h"

namespace {

using namespace abele;
using registry::Attached;
using registry::AttachedDevice;

using registry::kClock;
using registry::kDeviceHost;
using registry::kPartition;

std::string centred(const std::string& text, size_t width) {
  const size_t blanks = width > text.size() ? width - text.size() : 0;
  return std::string(blanks / 2, ' ') + text + std::string(blanks - blanks / 2, ' ');
}

// A title row. Its cells span several columns.
struct Title {
  std::string text;
  size_t columns;
};

// An empty row becomes a rule line.
std::string table(const std::vector<Title>& titles, const tools::Row& head, const std::vector<tools::Row>& rows,
                  const std::string& otherwise = "") {
  std::vector<tools::Row> all = rows;
  all.push_back(head);
  std::vector<size_t> widths = tools::widthsOf(all);
  for (size_t& width : widths) width += 2;
  const auto span = [&](size_t from, size_t count) {
    size_t width = count - 1;
    for (size_t c = from; c < from + count; ++c) width += widths[c];
    return width;
  };
  size_t at = 0;
  for (const Title& title : titles) {
    const size_t width = span(at, title.columns);
    at += title.columns;
    if (title.text.size() + 2 > width) widths[at - 1] += title.text.size() + 2 - width;
  }
  if (const size_t width = span(0, widths.size()); otherwise.size() + 2 > width)
    widths.back() += otherwise.size() + 2 - width;
  std::string rule = "+", title_rule = "+", title_row = "|", text;
  for (const size_t width : widths) rule += std::string(width, '-') + "+";
  at = 0;
  for (const Title& title : titles) {
    title_row += centred(title.text, span(at, title.columns)) + "|";
    title_rule += std::string(span(at, title.columns), '-') + "+";
    at += title.columns;
  }
  const auto line = [&](const tools::Row& row) {
    std::string cells = "|";
    for (size_t c = 0; c < widths.size(); ++c) cells += centred(c < row.size() ? row[c] : "", widths[c]) + "|";
    return cells + "\n";
  };
  text = cat(title_rule, "\n", title_row, "\n", rule, "\n");
  if (!otherwise.empty())
    return cat(text, "|", centred(otherwise, span(0, widths.size())), "|\n+", std::string(span(0, widths.size()), '-'),
               "+\n");
  text += line(head) + rule + "\n";
  for (const tools::Row& row : rows) text += row.empty() ? rule + "\n" : line(row);
  return text + rule + "\n";
}

std::string devicesTable() {
  const int64_t number = registry::numDevices();
  std::vector<tools::Row> rows;
  for (int64_t id = 0; id < number; ++id) {
    if (id > 0 && id % registry::kPerMachine == 0) rows.emplace_back();
    rows.push_back(
        {kDeviceHost, "N/A", "", versionText(), "N/A", "emulated", cat(id), cat(registry::ipuNumber(id)), "DNC"});
  }
  return table(
      {{"gc-monitor", 1}, {cat("Partition: ", kPartition, " [active] has ", number, " reconfigurable IPUs"), 8}},
      {"IPU-M", "Serial", "IPU-M SW", "Server version", "ICU FW", "Type", "ID", "IPU#", "Routing"}, rows);
}

// One row per process and device, because models of one process may share devices.
struct Use {
  int64_t pid = 0, id = 0, attached_ns = 0, user_id = 0;
  std::string command;
};
std::vector<Use> usesOf(const std::vector<Attached>& all) {
  std::vector<Use> uses;
  for (const Attached& each : all)
    for (const AttachedDevice& device : each.devices) {
      const auto same =
          std::ranges::find_if(uses, [&](const Use& use) { return use.pid == each.pid && use.id == device.id; });
      if (same != uses.end())
        same->attached_ns = std::max(same->attached_ns, each.attached_ns);
      else
        uses.push_back({each.pid, device.id, each.attached_ns, each.user_id, each.command});
    }
  std::ranges::sort(uses, {}, [](const Use& use) { return std::tuple(use.pid, use.id); });
  return uses;
}

std::string processesTable(const std::vector<Attached>& all) {
  std::vector<tools::Row> rows;
  const std::vector<Use> uses = usesOf(all);
  for (size_t i = 0; i < uses.size(); ++i) {
    const Use& use = uses[i];
    // A board has two devices; its own columns are filled only once.
    const bool is_second = i > 0 && uses[i - 1].pid == use.pid && uses[i - 1].id / 2 == use.id / 2;
    const std::string board = is_second ? "" : "N/A";
    rows.push_back({cat(use.pid), use.command.substr(0, use.command.find(' ')), tools::timeText(use.attached_ns),
                    registry::userName(use.user_id), cat(use.id), kClock, "N/A", board, board});
  }
  return table({{cat("Attached processes in partition ", kPartition), 4}, {"IPU", 3}, {"Board", 2}},
               {"PID", "Command", "Time", "User", "ID", "Clock", "Temp", "Temp", "Power"}, rows,
               rows.empty() ? "No attached processes" : "");
}

std::string json(const std::vector<Attached>& all, bool with_cards) {
  nlohmann::ordered_json text = {{"partition", kPartition}};
  if (with_cards) {
    text["devices"] = nlohmann::ordered_json::array();
    for (int64_t id = 0; id < registry::numDevices(); ++id)
      text["devices"].push_back({{"id", cat(id)},
                                 {"ipu-m", kDeviceHost},
                                 {"type", "emulated"},
                                 {"server version", versionText()},
                                 {"ipu#", cat(registry::ipuNumber(id))},
                                 {"routing", "DNC"}});
  }
  text["processes"] = nlohmann::ordered_json::array();
  for (const Use& use : usesOf(all))
    text["processes"].push_back({{"pid", cat(use.pid)},
                                 {"command", use.command},
                                 {"time", tools::timeText(use.attached_ns)},
                                 {"user", registry::userName(use.user_id)},
                                 {"id", cat(use.id)},
                                 {"clock", kClock}});
  return text.dump(2) + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  bool no_card_info = false, all_partitions = false, as_json = false;
  CLI::App app("Shows devices and who has them; they are emulated, each some cores of this machine", "gc-monitor");
  app.add_flag("--no-card-info", no_card_info, "the attached processes only");
  app.add_flag("--all-partitions", all_partitions, "no effect: there is one");
  app.add_flag("-j,--json", as_json, "as JSON");
  return tools::runTool(app, argc, argv, [&] {
    const std::vector<Attached> all = registry::attached();
    std::cout << (as_json ? json(all, !no_card_info)
                          : (no_card_info ? "" : devicesTable() + "\n") + processesTable(all));
  });
}
