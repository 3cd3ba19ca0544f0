// The text forms of a memory report.
#include <cstdio>

#include "base/cat.h"
#include "plan/memory_report.h"

namespace abele::plan {
namespace {

// {"weights", ...}: words of one part, for keys.
constexpr const char* kKeys[] = {"weights", "optimizer_state", "accumulators", "constants",
                                 "stash",   "transient",       "received"};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string classesJson(const BytesByClass& bytes) {
  std::string out = "{";
  for (size_t c = 0; c < kNumMemoryClasses; ++c) out += cat(c ? ", " : "", "\"", kKeys[c], "\": ", bytes[c]);
  return out + "}";
}

std::string tensorJson(const TensorMemory& t) {
  return cat("{\"name\": ", quoted(t.name), ", \"type\": ", quoted(t.type.str()), ", \"class\": \"",
             kKeys[static_cast<size_t>(t.memory_class)], "\", \"stage\": ", t.stage, ", \"frames\": ", t.frames,
             ", \"bytes\": ", t.bytes, ", \"layer\": ", quoted(t.layer), ", \"source\": ", quoted(t.source), "}");
}

template <class List, class Fn>
std::string listJson(const List& list, Fn&& each) {
  std::string out = "[";
  for (const auto& item : list) out += cat(out.size() > 1 ? ", " : "", each(item));
  return out + "]";
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
  const auto layer = [](const LayerMemory& l) {
    return cat("{\"layer\": ", quoted(l.layer), ", \"bytes\": ", l.total(), ", \"by_class\": ", classesJson(l.bytes),
               "}");
  };
  const auto device = [&](const DeviceMemory& d) {
    return cat("{\"device\": ", d.device, ", \"peak_bytes\": ", d.peak_bytes,
               ", \"off_chip_bytes\": ", d.off_chip_bytes, ", \"by_class\": ", classesJson(d.by_class),
               ",\n    \"layers\": ", listJson(d.layers, layer),
               ",\n    \"tensors\": ", listJson(d.tensors, tensorJson), "}");
  };
  return cat("{\"devices\": ", listJson(report.devices, device), "}");
}

}  // namespace abele::plan
