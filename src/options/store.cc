// Options::Values: what setters store, and the checks of the table of options.
#include "options/store.h"

#include <algorithm>

#include "base/environment.h"
#include "base/joined.h"
#include "base/log.h"
#include "base/nearest.h"
#include "options/notes.h"

namespace abele {
namespace options {
namespace {

enum class Because { kType, kRange };

[[noreturn]] void refuseValue(const OptionRow& row, const OptionParameter& parameter, const OptionValue& value,
                              const std::string& expected, Because because = Because::kType) {
  const Refused otherwise = because == Because::kType ? Refused::kCondition : Refused::kOtherwise;
  throw OptionError(ErrorCode::E0702,
                    {.what = cat(row.path, ": ", parameter.name, " is ", value.text()),
                     .found = value.text(),
                     .expected = expected,
                     .remedy = cat("pass ", expected)},
                    row.refused.value_or(otherwise));
}

bool isNumber(const OptionValue& value) { return value.as<int64_t>() || value.as<double>() || value.as<bool>(); }

bool isSwitches(const OptionMap& map) {
  return std::ranges::all_of(map, [](const auto& item) { return item.second.template as<bool>() != nullptr; });
}

bool areShares(const OptionMap& map) {
  return std::ranges::all_of(map, [](const auto& item) {
    const OptionValue& value = item.second;
    if (deviceOf(item.first) < 0 || !isNumber(value)) return false;
    const double share = value.template as<double>() ? *value.template as<double>() : *value.template as<int64_t>();
    return share >= 0 && share <= 1;
  });
}

bool isAllowed(const OptionParameter& parameter, int64_t number) {
  return parameter.values.empty() || std::ranges::find(parameter.values, number) != parameter.values.end();
}

OptionValue checkedInteger(const OptionRow& row, const OptionParameter& parameter, const OptionValue& value) {
  if (!value.as<int64_t>() && !value.as<bool>()) refuseValue(row, parameter, value, "an integer");
  const int64_t number = *integer<int64_t>(value);
  if (number < parameter.least || number > parameter.most || number % parameter.multiple != 0) {
    std::string range =
        parameter.most == kNoMost ? cat(parameter.least, " or more") : cat(parameter.least, " to ", parameter.most);
    if (parameter.multiple != 1) range += cat(", a multiple of ", parameter.multiple);
    refuseValue(row, parameter, value, range, Because::kRange);
  }
  if (!isAllowed(parameter, number))
    refuseValue(row, parameter, value, cat("one of ", joined(parameter.values)), Because::kRange);
  return value;
}

/// One number for every device, or a map for some devices.
OptionValue checkedBytes(const OptionRow& row, const OptionParameter& parameter, const OptionValue& value) {
  const OptionMap* map = value.as<OptionMap>();
  if (value.as<bool>()) refuseValue(row, parameter, value, "bytes, or {\"IPU<n>\": bytes}");
  if (!map) return checkedInteger(row, parameter, value);
  for (const auto& [device, bytes] : *map) {
    if (deviceOf(device) < 0 || !bytes.as<int64_t>())
      refuseValue(row, parameter, value, "bytes, or {\"IPU<n>\": bytes}");
    checkedInteger(row, parameter, bytes);
  }
  return value;
}

OptionValue checkedMember(const OptionRow& row, const OptionParameter& parameter, const std::string& type,
                          const OptionValue& value) {
  const EnumMember* found = value.as<EnumMember>();
  if (!found || found->type != type) refuseValue(row, parameter, value, cat("a member of ", type));
  const auto nameOf = [&](int64_t each) { return member(type, each).as<EnumMember>()->name; };
  if (!isAllowed(parameter, found->value))
    refuseValue(row, parameter, value, cat("one of ", joined(parameter.values, nameOf)), Because::kRange);
  return value;
}

/// torch.half, under its name in configuration files.
OptionValue floatType(const OptionValue& value) {
  static const std::map<std::string, const char*> names = {
      {"float", "Float"}, {"float32", "Float"}, {"half", "Half"}, {"float16", "Half"}, {"bfloat16", "BFloat16"}};
  const std::string* text = value.as<std::string>();
  if (!text) return value;
  const auto it = names.find(text->starts_with("torch.") ? text->substr(6) : *text);
  return it == names.end() ? value : member("FloatType", it->second);
}

OptionValue checkedObject(const OptionRow& row, const OptionParameter& parameter, const OptionValue& value) {
  OptionValue object = value.as<std::string>() ? parseObject(*value.as<std::string>()) : value;
  const bool strategy = parameter.type == "strategy";
  if (!(strategy ? object.object<ExecutionStrategy>() != nullptr : object.object<TensorLocationSettings>() != nullptr))
    refuseValue(row, parameter, value, strategy ? "an execution strategy" : "TensorLocationSettings");
  return object;
}

OptionValue checked(const OptionRow& row, const OptionParameter& parameter, const OptionValue& value) {
  std::string type = parameter.type;
  if (type.ends_with('?')) {
    if (value.isNone()) return value;
    type.pop_back();
  }
  const auto require = [&](bool fits, const char* expected) {
    if (!fits) refuseValue(row, parameter, value, expected);
    return value;
  };
  if (type == "int") return checkedInteger(row, parameter, value);
  if (type == "bytes") return checkedBytes(row, parameter, value);
  if (type == "bool") return require(value.as<bool>(), "true or false");
  if (type == "truth") {
    if (!value.as<bool>() && !value.as<int64_t>()) refuseValue(row, parameter, value, "true or false");
    return OptionValue(*integer<int64_t>(value) != 0);
  }
  if (type == "str") return require(value.as<std::string>(), "a string");
  if (type == "seed") return require(integer<uint64_t>(value).has_value(), "an integer of 64 bits");
  if (type == "strings") {
    const OptionList* list = value.as<OptionList>();
    return require(list && std::ranges::all_of(*list, &OptionValue::as<std::string>), "strings");
  }
  if (type == "shares")
    return require(value.as<OptionMap>() && areShares(*value.as<OptionMap>()), "{\"IPU<n>\": a share from 0 to 1}");
  if (type == "settings") return require(value.as<OptionMap>(), "a map");
  if (type == "switches")
    return require(value.as<OptionMap>() && isSwitches(*value.as<OptionMap>()), "a map of names to true or false");
  if (type == "setting") return require(*value.kind() != 0, "a bool, number, string, list or map");
  if (type == "strategy" || type == "location") return checkedObject(row, parameter, value);
  return checkedMember(row, parameter, type, type == "FloatType" ? floatType(value) : value);
}

}  // namespace

int64_t deviceOf(const std::string& name) {
  const bool named = name.starts_with("IPU") && name.size() > 3 && name.size() < 12 &&
                     name.find_first_not_of("0123456789", 3) == std::string::npos;
  return named ? std::stoll(name.substr(3)) : -1;
}

const OptionRow* findRow(const std::string& path) {
  const auto row = std::ranges::find(optionRows(), path, &OptionRow::path);
  return row == optionRows().end() ? nullptr : &*row;
}

std::vector<std::string> setterPaths() {
  std::vector<std::string> paths;
  for (const OptionRow& row : optionRows()) paths.push_back(row.path);
  return paths;
}

OptionList checkedArguments(const OptionRow& row, std::vector<OptionValue> positional,
                            std::vector<std::pair<std::string, OptionValue>> named) {
  const size_t count = row.parameters.size();
  if (count != 0 && row.parameters.back().spread &&
      !(positional.size() == count && positional.back().as<OptionList>())) {
    const size_t before = std::min(count - 1, positional.size());
    OptionList rest(positional.begin() + static_cast<ptrdiff_t>(before), positional.end());
    positional.resize(before);
    positional.emplace_back(std::move(rest));
  }
  const auto wrongCount = [&](const std::string& found) {
    throw OptionError(ErrorCode::E0702,
                      {.what = cat(row.path, " is called with ", found), .expected = cat(count, " arguments")},
                      Refused::kType);
  };
  if (positional.size() > count) wrongCount(cat(positional.size(), " arguments"));
  OptionList result;
  for (size_t i = 0; i < count; ++i) {
    const OptionParameter& parameter = row.parameters[i];
    const auto it = std::ranges::find(named, parameter.name, &std::pair<std::string, OptionValue>::first);
    if (i < positional.size()) {
      if (it != named.end()) wrongCount(cat(parameter.name, " twice"));
      result.push_back(checked(row, parameter, positional[i]));
    } else if (it != named.end()) {
      result.push_back(checked(row, parameter, it->second));
      named.erase(it);
    } else {
      if (!parameter.has_default) wrongCount(cat("no ", parameter.name));
      result.push_back(parameter.default_value);
    }
  }
  if (!named.empty()) wrongCount(cat("the unknown argument ", named.front().first));
  return result;
}

void setLocation(std::map<std::string, int64_t>& values, const std::string& path, std::vector<OptionValue> arguments) {
  const OptionRow* row = findRow(path);
  ABELE_CHECK(row, path);
  const OptionList checked = checkedArguments(*row, std::move(arguments), {});
  const OptionValue& value = checked.at(0);
  if (value.isNone())
    values.erase(row->key);
  else
    values[row->key] = value.as<bool>() ? *value.as<bool>() : *value.as<int64_t>();
}

namespace {

std::vector<std::string> expertNames() {
  std::vector<std::string> names;
  for (const auto& [name, setting] : expertSettings()) names.push_back(name);
  return names;
}

[[noreturn]] void refuseExpert(const std::string& name, const OptionValue& value, const std::string& expected) {
  throwUser(ErrorCode::E0702, {.what = cat("option ", name, " is ", value.text()),
                               .expected = expected,
                               .remedy = "remove the setting or correct it"});
}

void requireExpert(const std::string& name, const OptionValue& value) {
  const auto it = expertSettings().find(name);
  const bool known = it != expertSettings().end();
  ABELE_REQUIRE(known && it->second.kind == value.kind(), E0701,
                {.what = cat("Unknown ", value.kind(), " option ", name),
                 .found = cat("Popart().set(", quoted(name), ", ", value.text(), ")"),
                 .expected = known ? cat("a value of kind ", it->second.kind) : "a name that docs/options.md lists",
                 .remedy = known ? "remove the setting or correct it"
                                 : didYouMean(name, expertNames(), "remove the setting or correct it")});
  const uint64_t of_enum = static_cast<uint64_t>(it->second.number_of_values);
  if (value.as<int64_t>() && *value.as<int64_t>() < 0) refuseExpert(name, value, "an unsigned number of 64 bits");
  if (it->second.kind == "int" && of_enum != 0 && integer<uint64_t>(value).value_or(0) >= of_enum)
    refuseExpert(name, value, cat("a value of the enum, 0..", of_enum - 1));
  const auto isPlain = [](const OptionValue& item) { return item.as<std::string>() || integer<int64_t>(item); };
  if (const OptionList* list = value.as<OptionList>(); list && !std::ranges::all_of(*list, isPlain))
    refuseExpert(name, value, "a container of strings or integers");
  const auto isScalar = [&](const auto& item) { return isPlain(item.second) || item.second.template as<double>(); };
  if (const OptionMap* map = value.as<OptionMap>(); map && !std::ranges::all_of(*map, isScalar))
    refuseExpert(name, value, "a map with strings as names, and strings, numbers or flags as values");
  if (name == "logDir") note(log::Level::kWarn, "option logDir is ignored: use logDir(folder)");
  note(log::Level::kDebug, cat("option ", name, " = ", value.text()));
}

}  // namespace

void validateExpert(const OptionMap& settings) {
  for (const auto& [name, value] : settings) requireExpert(name, value);
  ABELE_REQUIRE(!settings.contains("patterns") || settings.contains("patterns_level"), E0702,
                {.what = "patterns are set without a level", .remedy = "use Popart().setPatterns(patterns, level)"});
}

}  // namespace options

using options::OptionRow;
using options::OptionValue;

namespace {

// Reads poprun's variables: a replica spans several processes if each process cannot have whole replicas.
void setDevicesPerProcess(Options::Values& values) {
  const int64_t processes = environmentInteger("OMPI_COMM_WORLD_SIZE", 1, 1);
  const int64_t replicas = environmentInteger("POPDIST_NUM_TOTAL_REPLICAS", processes, 1);
  if (replicas % processes == 0) return;
  const int64_t devices = environmentInteger("POPDIST_NUM_IPUS_PER_REPLICA", 1, 1);
  values.call("Distributed.devicesPerProcess", {OptionValue(devices * replicas / processes)});
  if (replicas > 1) values.call("replicationFactor", {OptionValue(replicas)});
}

}  // namespace

Options::Values::Values(bool with_environment) : popart(options::expertDefaults()) {
  for (const options::OptionDefault& each : options::optionDefaults())
    entries.push_back({each.group, each.key, each.value});
  call("Distributed.setEnvVarNames", {OptionValue("OMPI_COMM_WORLD_SIZE"), OptionValue("OMPI_COMM_WORLD_RANK")});
  setDevicesPerProcess(*this);
  if (!with_environment) return;
  const std::string cache = environmentText("POPTORCH_CACHE_DIR");
  if (!cache.empty()) {
    log::info("POPTORCH_CACHE_DIR is set: executables are cached in ", cache);
    call("enableExecutableCaching", {OptionValue(cache)});
  }
  const std::string defaults = environmentText("POPTORCH_DEFAULT_OPTIONS");
  if (!defaults.empty()) {
    log::info("POPTORCH_DEFAULT_OPTIONS is set: ", defaults);
    options::applyJson(*this, defaults);
  }
}

void Options::Values::requireNotFrozen(const std::string& name) const {
  if (!frozen) return;
  throw options::OptionError(ErrorCode::E0707,
                             {.what = cat("can't modify frozen options (", name, ")"),
                              .remedy = "set options before the model or the DataLoader is made, or copy them"},
                             options::Refused::kName);
}

void Options::Values::call(const std::string& path, std::vector<OptionValue> arguments,
                           std::vector<std::pair<std::string, OptionValue>> named) {
  const OptionRow* row = options::findRow(path);
  if (!row)
    throw options::OptionError(
        ErrorCode::E0701,
        {.what = cat("there is no setter ", path),
         .remedy = didYouMean(path, options::setterPaths(), "docs/options.md lists all of them")},
        options::Refused::kName);
  requireNotFrozen(path);
  store(*row, options::checkedArguments(*row, std::move(arguments), std::move(named)));
}

void Options::Values::store(const OptionRow& row, const options::OptionList& arguments) {
  if (row.kind == options::OptionKind::kWritten) return options::callWritten(*this, row, arguments);
  if (row.kind == options::OptionKind::kIgnored)
    return options::note(log::Level::kWarn, cat(row.path, " is deprecated and has no effect"));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const options::OptionParameter& parameter = row.parameters[i];
    OptionValue value = arguments[i];
    for (const auto& [given, stored] : parameter.stored)
      if (value == given) {
        value = stored;
        break;
      }
    if (!parameter.stored_as.empty()) value = OptionValue(options::OptionMap{{parameter.stored_as, value}});
    const std::string& key = parameter.key.empty() ? row.key : parameter.key;
    if (value.isNone())
      erase(key);
    else if (row.kind == options::OptionKind::kPopart)
      popart[key] = std::move(value);
    else
      set(row.group, key, std::move(value));
  }
  for (const auto& [key, value] : row.implies) set(row.group, key, value);
}

void Options::Values::assign(const std::string& group, const std::string& key, OptionValue value) {
  requireNotFrozen(key);
  const OptionValue* current = find(group, key);
  if (!current)
    throw options::OptionError(ErrorCode::E0701,
                               {.what = cat("there is no option ", key),
                                .remedy = didYouMean(key, keys(), "docs/options.md lists all of them")},
                               options::Refused::kCondition);
  value = typed(key, std::move(value));
  const bool same = std::string(current->kind()) == value.kind() ||
                    (std::string(current->kind()) == "int" && std::string(value.kind()) == "bool");
  if (!same)
    throw options::OptionError(
        ErrorCode::E0702,
        {.what = cat("option ", key, " is ", value.text()), .expected = cat("a value of kind ", current->kind())},
        options::Refused::kCondition);
  set(group, key, std::move(value));
}

namespace {

using options::OptionList;
using options::OptionMap;

/// [long name, as the model, output mode, period]
OptionValue typedAnchor(const std::string& name, const OptionValue& entry) {
  const OptionList* parts = entry.as<OptionList>();
  const bool fits = parts && parts->size() == 4 && (*parts)[0].as<std::string>() && (*parts)[1].as<bool>() &&
                    ((*parts)[2].as<int64_t>() || (*parts)[2].as<options::EnumMember>()) && (*parts)[3].as<int64_t>();
  ABELE_REQUIRE(fits, E0702,
                {.what = cat("anchored tensor ", name, " is ", entry.text()),
                 .expected = "[long name, as the model, output mode, period]"});
  OptionList result = *parts;
  if (const int64_t* mode = result[2].as<int64_t>()) result[2] = options::member("OutputMode", *mode);
  return OptionValue(std::move(result));
}

OptionValue typedLocation(const std::string& key, const OptionMap& given) {
  TensorLocationSettings settings;
  for (const auto& [name, value] : given) {
    const auto number = options::integer<int64_t>(value);
    ABELE_REQUIRE(number, E0702, {.what = cat("option ", key, ": ", name, " is ", value.text())});
    OptionsAccess::values(settings)[name] = *number;
  }
  return options::toValue(settings);
}

}  // namespace

OptionValue Options::Values::typed(const std::string& key, OptionValue value) const {
  const OptionValue* current = find(key);
  const auto* old = current ? current->as<options::EnumMember>() : nullptr;
  if (old && value.as<int64_t>()) return options::member(old->type, *value.as<int64_t>());
  const OptionMap* given = value.as<OptionMap>();
  if (given && key.starts_with("location_")) return typedLocation(key, *given);
  if (given && key == "anchored_tensors") {
    OptionMap anchors;
    for (const auto& [name, entry] : *given) anchors.emplace(name, typedAnchor(name, entry));
    return OptionValue(std::move(anchors));
  }
  return value;
}

OptionList Options::Values::list(const std::string& key) const {
  const OptionValue* found = find(key);
  return found && found->as<OptionList>() ? *found->as<OptionList>() : OptionList();
}

OptionMap Options::Values::map(const std::string& key) const {
  const OptionValue* found = find(key);
  return found && found->as<OptionMap>() ? *found->as<OptionMap>() : OptionMap();
}

std::vector<std::string> Options::Values::keys() const {
  std::vector<std::string> all;
  for (const Entry& entry : entries) all.push_back(entry.key);
  return all;
}

const OptionValue* Options::Values::find(const std::string& key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

const OptionValue* Options::Values::find(const std::string& group, const std::string& key) const {
  for (const Entry& entry : entries)
    if (entry.key == key && entry.group == group) return &entry.value;
  return nullptr;
}

void Options::Values::set(const std::string& group, const std::string& key, OptionValue value) {
  for (Entry& entry : entries)
    if (entry.key == key) {
      entry.value = std::move(value);
      return;
    }
  entries.push_back({group, key, std::move(value)});
}

void Options::Values::erase(const std::string& key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

const OptionValue* Options::Values::expert(const std::string& name) const {
  const auto it = popart.find(name);
  return it == popart.end() ? nullptr : &it->second;
}

}  // namespace abele
