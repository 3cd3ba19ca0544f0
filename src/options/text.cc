// Options as text, and as JSON. Source: spec options.md section 8.
#include "base/joined.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "options/store.h"

namespace abele::options {
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

/// Anchors as text in the form of Python's dict: the mode is a number.
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

using Json = JsonText::Json;

// JSON is UTF-8, but options hold file names, which are any bytes. For the parser a byte outside of UTF-8 becomes a
// character for private use, U+EF80 to U+EFFF.
std::string hiddenBytes(const std::string& text) {
  std::string all;
  for (size_t i = 0, length = 1; i < text.size(); i += length) {
    for (length = 1; length <= 4 && !isUtf8(std::string_view(text).substr(i, length));) ++length;
    const auto byte = static_cast<uint8_t>(text[i]);
    if (length <= 4) {
      all += text.substr(i, length);
    } else {
      all += {'\xEE', static_cast<char>(byte < 0xC0 ? 0xBE : 0xBF), static_cast<char>(0x80 | (byte & 0x3F))};
      length = 1;
    }
  }
  return all;
}

std::string shownBytes(const std::string& text) {
  std::string all;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_byte = text[i] == '\xEE' && i + 2 < text.size() && (text[i + 1] == '\xBE' || text[i + 1] == '\xBF');
    all += is_byte ? static_cast<char>(text[i + 2] + (text[i + 1] == '\xBF' ? 0x40 : 0)) : text[i];
    if (is_byte) i += 2;
  }
  return all;
}

/// has_bytes: the text has bytes outside of UTF-8.
OptionValue valueOf(const Json& json, bool has_bytes) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (json.is_boolean()) return OptionValue(json.get<bool>());
  if (json.is_number_float()) return OptionValue(json.get<double>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > kMost) return OptionValue(json.get<uint64_t>());
  if (json.is_number()) return OptionValue(json.get<int64_t>());
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    return OptionValue(has_bytes ? shownBytes(text) : text);
  }
  if (json.is_array()) {
    OptionList list;
    for (const Json& each : json) list.push_back(valueOf(each, has_bytes));
    return OptionValue(std::move(list));
  }
  if (!json.is_object()) return OptionValue();
  OptionMap map;
  for (const auto& [name, each] : json.items())
    map.emplace(has_bytes ? shownBytes(name) : name, valueOf(each, has_bytes));
  return OptionValue(std::move(map));
}

/// Converts a text to a member of an enumeration, or to an object if the setter takes one.
OptionValue argumentOf(OptionValue value, const std::string& type) {
  const std::string* word = value.as<std::string>();
  if (!word) return value;
  if (type == "strategy" || type == "location") return parseObject(*word);
  return memberNamed(*word).value_or(value);
}

/// Applies one member of the JSON. Python's dicts use "update", which adds several values at once.
void applyMember(Options::Values& values, const std::string& path, const OptionValue& given) {
  const OptionMap* map = given.as<OptionMap>();
  if (path == "_Popart.options.update" && map) {
    for (const auto& [name, setting] : *map) values.call("_Popart.set", {OptionValue(name), setting});
    return;
  }
  if (path == "anchored_tensors.update" && map) {
    OptionMap anchors = values.map("anchored_tensors");
    for (const auto& [name, anchor] : *map) anchors.insert_or_assign(name, anchor);
    return values.assign("Options", "anchored_tensors", OptionValue(std::move(anchors)));
  }
  OptionList arguments = given.as<OptionList>() ? *given.as<OptionList>() : OptionList{given};
  const OptionRow* row = findRow(path);
  for (size_t i = 0; i < arguments.size(); ++i)
    arguments[i] = argumentOf(arguments[i], row && i < row->parameters.size() ? row->parameters[i].type : "");
  values.call(path, std::move(arguments));
}

}  // namespace

void applyJson(Options::Values& values, const std::string& text) {
  const auto refuse = [&](const std::string& found, int64_t line) {
    throwUser(ErrorCode::E0702, {.what = cat("options are not a JSON object: ", found),
                                 .at = cat("line ", line),
                                 .found = text,
                                 .expected = "{\"dotted.setter\": arguments}"});
  };
  try {
    const bool has_bytes = !isUtf8(text);
    const JsonText json(has_bytes ? hiddenBytes(text) : text);
    if (!json.root().is_object()) refuse(json.root().type_name(), 1);
    for (const auto& [path, given] : json.root().items()) try {
        applyMember(values, path, valueOf(given, has_bytes));
      } catch (Error& error) {
        error.addContext(cat(json.placeOf(given), " of the JSON"));
        throw;
      }
  } catch (const JsonFault& fault) {
    refuse(fault.found, fault.line);
  }
}

std::string toJson(const Options::Values& values) {
  std::string text;
  const auto add = [&](const std::string& path, const std::string& arguments) {
    text += cat(text.empty() ? "" : ", ", quoted(path), ": ", arguments);
  };
  // Writes a setter if one of the values that it makes differs from the default.
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
  // useOfflineIpuTarget changes the connection type, so an explicit connection type is written after it.
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
  const auto setting = [](const auto& each) { return cat(each.first, "=", each.second.text()); };
  return cat(text, ", Popart=Popart(", joined(values.popart, setting), "))");
}

}  // namespace abele::options
