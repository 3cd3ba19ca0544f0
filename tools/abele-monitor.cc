// Shows which processes have devices, and how busy they are. Reads the records of running programs without disturbing
// them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "monitor.h"
#include "registry/attachment.h"
#include "registry/devices.h"
#include "tool.h"

namespace {

using namespace abele;
using registry::Attached;
using registry::AttachedDevice;

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f%%", share * 100);
  return text;
}

std::string tableOf(const std::vector<Attached>& all) {
  std::vector<tools::Row> rows = {{"DEVICE", "TARGET", "PID", "USER", "COMMAND", "MODEL", "TIME", "STEPS", "LOAD"}};
  std::set<int64_t> devices, processes;
  for (const Attached& each : all) {
    processes.insert(each.pid);
    const std::string kind = each.is_training ? "training" : "inference";
    for (const AttachedDevice& device : each.devices) {
      devices.insert(device.id);
      rows.push_back({cat(device.id), device.target, cat(each.pid), registry::userName(each.user_id), each.command,
                      each.model.empty() ? kind : cat(each.model, " (", kind, ")"), tools::timeText(each.attached_ns),
                      cat(each.steps), percent(device.load)});
    }
  }
  std::string text;
  if (!devices.empty()) {
    const std::vector<size_t> widths = tools::widthsOf(rows);
    for (const tools::Row& row : rows) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c) {
        const std::string blanks(widths[c] - row[c].size(), ' ');
        const bool is_number = c == 0 || c == 2 || c >= 6;
        line += (c ? "  " : "") + (is_number ? blanks + row[c] : row[c] + blanks);
      }
      text += line + "\n";
    }
  }
  const int64_t number = registry::numDevices();
  return text +
         (devices.empty()
              ? cat("no process has devices; there are ", number, "\n")
              : cat(devices.size(), devices.size() == 1 ? " device is" : " devices are", " in use by ",
                    processes.size(), processes.size() == 1 ? " process" : " processes", "; there are ", number, "\n"));
}

std::string jsonOf(const std::vector<Attached>& all) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const Attached& each : all) {
    nlohmann::ordered_json devices = nlohmann::ordered_json::array();
    for (const AttachedDevice& device : each.devices)
      devices.push_back({{"id", device.id},
                         {"target", device.target},
                         {"busy_s", static_cast<double>(device.busy_ns) * 1e-9},
                         {"load", device.load}});
    models.push_back({{"pid", each.pid},
                      {"user", registry::userName(each.user_id)},
                      {"command", each.command},
                      {"model", each.model},
                      {"kind", each.is_training ? "training" : "inference"},
                      {"exclusive", each.is_exclusive},
                      {"attached_s", static_cast<double>(each.attached_ns) * 1e-9},
                      {"steps", each.steps},
                      {"devices", std::move(devices)}});
  }
  nlohmann::ordered_json all_of_it = {{"num_devices", registry::numDevices()}, {"attached", std::move(models)}};
  return all_of_it.dump() + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, watch = false;
  double interval = 1;
  CLI::App app("Shows which processes have devices, and how busy these are", "abele-monitor");
  app.add_flag("-j,--json", json, "one line of JSON");
  app.add_flag("-w,--watch", watch, "again and again, until Ctrl-C");
  app.add_option("-n,--interval", interval, "seconds between two looks of --watch")->check(CLI::Range(0.05, 86400.0));
  return tools::runTool(app, argc, argv, [&] {
    tools::showAgain(watch, interval, [&] {
      const std::vector<Attached> all = registry::attached();
      return json ? jsonOf(all) : tableOf(all) + (watch ? "\n" : "");
    });
  });
}
