#include "options/run_time.h"

#include <algorithm>
#include <set>

#include "options/notes.h"

namespace abele::options {
namespace {

constexpr const char* kStrategy = "the execution strategy";

bool isRunTime(const std::string& key) {
  const auto found = std::ranges::find(optionKeys(), key, &OptionKey::key);
  return found != optionKeys().end() && found->run_time;
}

bool isRunTimeExpert(const std::string& name) {
  const auto found = expertSettings().find(name);
  return found != expertSettings().end() && found->second.run_time;
}

}  // namespace

std::vector<std::string> keepCompiled(Options::Values& now, const Options::Values& compiled) {
  std::vector<std::string> changed;
  for (const char* group : {"Options", "Training", "Precision", "TensorLocations", "Distributed", "Jit"}) {
    std::set<std::string> keys;
    for (const Options::Values* each : {static_cast<const Options::Values*>(&now), &compiled})
      for (const Options::Values::Entry& entry : each->entries)
        if (entry.group == group && !isRunTime(entry.key)) keys.insert(entry.key);
    for (const std::string& key : keys) {
      const OptionValue *mine = now.find(group, key), *original = compiled.find(group, key);
      if (mine && original && *mine == *original) continue;
      changed.push_back(key);
      if (original)
        now.set(group, key, *original);
      else
        now.erase(key);
    }
  }
  std::set<std::string> names;
  for (const OptionMap* each : {static_cast<const OptionMap*>(&now.popart), &compiled.popart})
    for (const auto& [name, value] : *each)
      if (!isRunTimeExpert(name)) names.insert(name);
  for (const std::string& name : names) {
    const OptionValue *mine = now.expert(name), *original = compiled.expert(name);
    if (mine && original && *mine == *original) continue;
    changed.push_back(name);
    if (original)
      now.popart.insert_or_assign(name, *original);
    else
      now.popart.erase(name);
  }
  if (textOf(now.strategy) != textOf(compiled.strategy)) {
    changed.emplace_back(kStrategy);
    now.strategy = compiled.strategy;
  }
  return changed;
}

bool isOfProgram(const std::string& distributed) {
  return distributed == "devices_per_process" || distributed == "processes_per_replica" || distributed == "output_rank";
}

std::string textOfSaved(Options::Values values) {
  std::erase_if(values.entries,
                [](const auto& entry) { return entry.group == "Distributed" && !isOfProgram(entry.key); });
  return toJson(values);
}

Options::Values savedOptions(const std::string& text) {
  Options::Values values(/*with_environment=*/false);
  values.set("Distributed", "devices_per_process", OptionValue(int64_t{0}));  // a launcher's value is for new programs
  const NoteListener silence([](log::Level, const std::string&) {});          // the notes appeared when they were set
  try {
    if (!text.empty()) applyJson(values, text);
  } catch (const Error& error) {
    throwUser(ErrorCode::E0501, {.what = "the options of a program are not valid",
                                 .found = error.what(),
                                 .remedy = "compile and save again with this version of Abele"});
  }
  const OptionValue never = member("ConnectionType", static_cast<int64_t>(ConnectionType::kNever));
  if (*values.find("connection_type") == never) {
    values.erase("ipu_version");
    values.set("Options", "connection_type", member("ConnectionType", static_cast<int64_t>(ConnectionType::kAlways)));
  }
  return values;
}

void takePlaceHere(Options::Values& saved, int64_t process, int64_t processes) {
  const auto here = saved.get<int64_t>("num_distributed_processes");
  const int64_t devices = processes * saved.get<int64_t>("devices_per_process");
  if (here != processes) saved.set("Distributed", "processes_per_replica", OptionValue(int64_t{0}));
  if (devices == 0 && (processes == 1 || here == 1)) {  // the file says that each process has whole replicas
    saved.set("Distributed", "distributed_process_id", OptionValue(process));
    saved.set("Distributed", "num_distributed_processes", OptionValue(processes));
  } else if (here == 1) {
    saved.set("Distributed", "devices_per_process", OptionValue(int64_t{0}));
  } else if (devices % here == 0) {
    saved.set("Distributed", "devices_per_process", OptionValue(devices / here));
  }
}

std::vector<std::string> chosenInVain(const std::vector<std::string>& kept, const Options::Values& chosen) {
  const Options::Values unset;
  std::vector<std::string> names;
  for (const std::string& name : kept) {
    const OptionValue *asked = chosen.find(name), *otherwise = unset.find(name);
    if (!asked) asked = chosen.expert(name), otherwise = unset.expert(name);
    const bool is_chosen = name == kStrategy ? textOf(chosen.strategy) != textOf(unset.strategy)
                                             : asked && !(otherwise && *asked == *otherwise);
    if (is_chosen) names.push_back(name);
  }
  return names;
}

}  // namespace abele::options
