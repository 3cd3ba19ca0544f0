// The text forms of a memory report.
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "plan/memory_report.h"

namespace abele::plan {
namespace {

using Json = nlohmann::ordered_json;

// The names of memoryClassName as single words, for keys of JSON.
constexpr const char* kKeys[] = {"weights", "optimizer_state", "accumulators", "constants",
                                 "stash",   "transient",       "received"};

Json classesJson(const BytesByClass& bytes) {
  Json classes;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) classes[kKeys[c]] = bytes[c];
  return classes;
}

Json tensorJson(const TensorMemory& t) {
  return {{"name", t.name},   {"type", t.type.str()}, {"class", kKeys[static_cast<size_t>(t.memory_class)]},
          {"stage", t.stage}, {"frames", t.frames},   {"bytes", t.bytes},
          {"layer", t.layer}, {"source", t.source}};
}

Json layerJson(const LayerMemory& l) {
  return {{"layer", l.layer}, {"bytes", l.total()}, {"by_class", classesJson(l.bytes)}};
}

template <class List, class Fn>
Json listJson(const List& list, Fn&& each) {
  Json items = Json::array();
  for (const auto& item : list) items.push_back(each(item));
  return items;
}

Json deviceJson(const DeviceMemory& d) {
  return {{"device", d.device},
          {"peak_bytes", d.peak_bytes},
          {"off_chip_bytes", d.off_chip_bytes},
          {"by_class", classesJson(d.by_class)},
          {"layers", listJson(d.layers, layerJson)},
          {"tensors", listJson(d.tensors, tensorJson)}};
}

}  // namespace

std::string describe(const TensorMemory& t) {
  return cat(t.layer.empty() ? "" : cat(t.layer, ": "), t.name, " ", t.type.str(),
             t.source.empty() ? "" : cat(" (", t.source, ")"), ", ", memoryClassName(t.memory_class),
             t.frames > 1 ? cat(" of ", t.frames, " micro-batches") : "", ", ", t.bytes, " bytes");
}

std::string memoryText(const MemoryReport& report) {
  std::string out;
  for (const DeviceMemory& d : report.devices) {
    out += cat("device ", d.device, ": ", d.peak_bytes, " bytes");
    if (d.off_chip_bytes > 0) out += cat(", ", d.off_chip_bytes, " off chip");
    out += '\n';
    for (size_t c = 0; c < kNumMemoryClasses; ++c)
      if (d.by_class[c] > 0) out += cat("  ", memoryClassName(static_cast<MemoryClass>(c)), ": ", d.by_class[c], "\n");
    out += "  by layer\n";
    for (const LayerMemory& layer : d.layers) out += cat("    ", layer.layer, ": ", layer.total(), "\n");
    out += "  largest\n";
    for (const TensorMemory& t : d.tensors) out += cat("    ", describe(t), "\n");
  }
  return out;
}

std::string memoryJson(const MemoryReport& report) {
  const Json all = {{"devices", listJson(report.devices, deviceJson)}};
  return all.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace abele::plan
