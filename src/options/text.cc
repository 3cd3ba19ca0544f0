// Options as text and as JSON.

#include "options/store.h"

namespace abele::host {
namespace {

const OptionValue* defaultOf(const std::string& key) {
  for (const OptionDefault& each : optionDefaults())
    if (each.key == key) return &each.value;
  return nullptr;
}

/// Arguments of the setter that makes a value, as JSON; "" for values that another setter makes.
std::string argumentsOf(const Options::Values& values, const Options::Values::Entry& entry) {
  const std::string text = entry.value.text();
  if (entry.key == "output_return_period" || entry.key == "input_cgt" || entry.key == "num_distributed_processes")
    return "";
  if (entry.key == "output_mode") return cat("[", text, ", ", values.find("output_return_period")->text(), "]");
  if (entry.key == "input_group_size") return cat("[", text, ", ", values.find("input_cgt")->text(), "]");
  if (entry.key == "distributed_process_id")
    return cat("[", text, ", ", values.find("num_distributed_processes")->text(), "]");
  if (entry.key == "module_namescope_enabled") return "[]";
  if (entry.key == "max_repeat_logs" && entry.value.as<uint64_t>()) return "null";
  return entry.value.as<OptionList>() ? cat("[", text, "]") : text;
}

/// Updates of anchors, in the form of Python's dict: the mode is a number.
std::string anchorsText(const OptionMap& anchors) {
  OptionMap plain;
  for (const auto& [name, entry] : anchors) {
    OptionList parts = *entry.as<OptionList>();
    parts[2] = OptionValue(parts[2].as<EnumMember>()->value);
    plain.emplace(name, OptionValue(std::move(parts)));
  }
  return OptionValue(std::move(plain)).text();
}

const OptionRow* rowOf(const std::string& key) {
  for (const OptionRow& row : optionRows())
    if (row.key == key && row.kind != OptionKind::kPopart) return &row;
  return nullptr;
}

}  // namespace

std::string toJson(const Options::Values& values) {
  std::string text;
  const auto add = [&](const std::string& path, const std::string& arguments) {
    text += cat(text.empty() ? "" : ", ", quoted(path), ": ", arguments);
  };
  // A setter is called when one of the values that it makes is not the default.
  const auto differs = [&](const std::string& key) {
    const OptionValue* now = values.find(key);
    const OptionValue* first = defaultOf(key);
    return now && !(first && *now == *first);
  };
  static const std::map<std::string, std::string> partners = {{"output_mode", "output_return_period"},
                                                              {"input_group_size", "input_cgt"},
                                                              {"distributed_process_id", "num_distributed_processes"}};
  if (const OptionValue strategy = toValue(values.strategy); textOf(values.strategy) != textOf(PipelinedExecution()))
    add("setExecutionStrategy", strategy.text());
  for (const Options::Values::Entry& entry : values.entries) {
    const auto partner = partners.find(entry.key);
    if (!differs(entry.key) && !(partner != partners.end() && differs(partner->second))) continue;
    if (entry.key == "anchored_tensors") {
      add("anchored_tensors.update", anchorsText(*entry.value.as<OptionMap>()));
      continue;
    }
    const std::string arguments = argumentsOf(values, entry);
    const OptionRow* row = rowOf(entry.key);
    if (!arguments.empty() && row && entry.key != "connection_type") add(row->path, arguments);
  }
  // useOfflineIpuTarget changes the connection type, so what was chosen after it comes last.
  const bool offline = values.find("ipu_version") != nullptr;
  const OptionValue& connection = *values.find("connection_type");
  if (offline ? !(connection == member("ConnectionType", "Never")) : differs("connection_type"))
    add("connectionType", connection.text());
  OptionMap expert;
  for (const auto& [name, value] : values.popart) {
    const auto it = expertDefaults().find(name);
    if (it == expertDefaults().end() || !(it->second == value)) expert.emplace(name, value);
  }
  if (!expert.empty()) add("_Popart.options.update", OptionValue(std::move(expert)).text());
  return cat("{", text, "}");
}

std::string toText(const Options::Values& values) {
  const auto group = [&](const std::string& name) {
    std::string text;
    for (const Options::Values::Entry& entry : values.entries)
      if (entry.group == name) text += cat(text.empty() ? "" : ", ", entry.key, "=", entry.value.text());
    return text;
  };
  std::string text = cat("Options(", group("Options"), ", execution_strategy=", textOf(values.strategy));
  for (const char* name : {"Distributed", "Precision", "TensorLocations", "Training"})
    text += cat(", ", name, "=", name, "(", group(name), ")");
  std::string expert;
  for (const auto& [name, value] : values.popart) expert += cat(expert.empty() ? "" : ", ", name, "=", value.text());
  return cat(text, ", Popart=Popart(", expert, "))");
}

}  // namespace abele::host
