// Descriptions of machines as text: docs/simulator.md, "Machines".
#include "schedule/machine_json.h"

#include <iomanip>
#include <sstream>

#include "base/cat.h"
#include "schedule/machine_text.h"

namespace abele::schedule {
namespace {

constexpr int64_t kMostDevices = 1'000'000;

Link readLink(const JsonReader& reader, const Json& value) {
  Link link;
  reader.readMembers(value, {{"name", [&](const Json& v) { link.name = reader.readString(v); }},
                             {"devices", reader.into(link.devices)},
                             {"latency_ns", reader.into(link.latency_ns)},
                             {"bytes_per_s", reader.into(link.bytes_per_s)},
                             {"shared", reader.into(link.is_shared)}});
  if (link.bytes_per_s < 1) reader.fail(value, cat(link.bytes_per_s, " bytes a second"), "\"bytes_per_s\" above 0");
  if (link.latency_ns < 0 || link.devices < 0 || link.devices > kMostDevices)
    reader.fail(value, "an impossible link", cat("latency_ns from 0, devices from 0 to ", kMostDevices));
  return link;
}

void readDevice(const JsonReader& reader, const Json& value, Machine& machine) {
  reader.readObject(value, [&](const std::string& key, const Json& v) {
    int64_t* const field = key == "bytes"         ? &machine.device_bytes
                           : key == "flops_per_s" ? &machine.device_flops_per_s
                                                  : nullptr;
    if (field == nullptr) reader.failKey(v, key, "bytes or flops_per_s");
    *field = reader.readInteger(v);
    if (*field < 0) reader.fail(v, cat(key, " ", *field), "0 or more");
  });
}

// Checks that each group is made of whole groups of the level inside it.
void requireNested(const JsonReader& reader, const Json& value, const Machine& machine) {
  int64_t inside = machine.space_devices;
  if (inside < 1 || inside > kMostDevices)
    reader.fail(value, cat(inside, " devices that share memory"), cat("1 to ", kMostDevices));
  for (size_t i = 0; i < machine.links.size(); ++i) {
    const int64_t devices = machine.links[i].devices;
    const bool is_last = i + 1 == machine.links.size();
    const bool fits = devices == 0 ? is_last : devices % inside == 0;
    if (!fits)
      reader.fail(value, cat("a link among ", devices, " devices around groups of ", inside),
                  cat("a multiple of ", inside, "; only the last link may leave \"devices\" out"));
    inside = devices;
  }
}

}  // namespace

Machine readMachine(const JsonReader& reader, const Json& value) {
  Machine machine;
  reader.readMembers(value, {{"name", [&](const Json& v) { machine.name = reader.readString(v); }},
                             {"device", [&](const Json& v) { readDevice(reader, v, machine); }},
                             {"space_devices", reader.into(machine.space_devices)},
                             {"links", [&](const Json& v) {
                                reader.readList(
                                    v, [&](const Json& link) { machine.links.push_back(readLink(reader, link)); });
                              }}});
  requireNested(reader, value, machine);
  return machine;
}

Machine parseMachine(const std::string& json, const std::string& what) {
  const JsonReader reader(what, json);
  return readMachine(reader, reader.root());
}

std::string machineText(const Machine& machine) { return machineJson(machine).dump(); }

std::string linksText(const Machine& machine) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3);
  for (size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    out << (i > 0 ? ", " : "") << link.name << " " << static_cast<double>(link.latency_ns) / 1e3 << " us and "
        << static_cast<double>(link.bytes_per_s) / 1e9 << " GB/s";
  }
  return out.str();
}

nlohmann::ordered_json machineJson(const Machine& machine) {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const Link& link : machine.links) {
    nlohmann::ordered_json one = {{"name", link.name}};
    if (link.devices > 0) one["devices"] = link.devices;
    one["latency_ns"] = link.latency_ns;
    one["bytes_per_s"] = link.bytes_per_s;
    if (link.is_shared) one["shared"] = true;
    links.push_back(std::move(one));
  }
  return {{"name", machine.name},
          {"device", {{"bytes", machine.device_bytes}, {"flops_per_s", machine.device_flops_per_s}}},
          {"space_devices", machine.space_devices},
          {"links", std::move(links)}};
}

}  // namespace abele::schedule
