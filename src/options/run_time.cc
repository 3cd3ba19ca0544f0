#include "options/run_time.h"

#include <algorithm>
#include <set>

namespace abele::host {
namespace {

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
    changed.push_back("the execution strategy");
    now.strategy = compiled.strategy;
  }
  return changed;
}

}  // namespace abele::host
