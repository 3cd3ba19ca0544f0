#include "compile/expert_settings.h"

#include <algorithm>

#include "base/error.h"
#include "options/rows.h"

namespace abele::compile {
namespace {

/// The values of a setting that agree with the program's own behaviour, as JSON.
std::vector<std::string> agreeing(const std::string& name, const ProgramOptions& session) {
  const int64_t replicas = totalReplicas(session);
  const auto switchOf = [](bool is_needed) {
    return is_needed ? std::vector<std::string>{"true"} : std::vector<std::string>{"true", "false"};
  };
  if (name == "accumulationFactor") return {cat(session.gradient_accumulation)};
  if (name == "enableGradientAccumulation") return switchOf(session.gradient_accumulation > 1);
  if (name == "enableReplicatedGraphs") return switchOf(replicas > 1);
  if (name == "enableDistributedReplicatedGraphs") return switchOf(replicaProcesses(session) > 1);
  if (name == "globalReplicationFactor") return {cat(replicas)};
  if (name == "globalReplicaOffset")
    return {
        cat(replicaProcesses(session) > 1 ? session.processes.index / session.processes.stages * session.replicas : 0)};
  if (name == "accumulationAndReplicationReductionType") return {session.mean_reduction ? "1" : "0"};
  throwInternal(__FILE__, __LINE__, "agreeing", cat("no value for the expert setting ", name));
}

}  // namespace

std::vector<std::string> requireAvailable(const options::OptionMap& settings, const ProgramOptions& session) {
  std::vector<std::string> hints;
  for (const auto& [name, value] : settings) {
    const options::ExpertSetting& row = options::expertSettings().at(name);
    const auto initial = options::expertDefaults().find(name);
    const bool is_set = initial == options::expertDefaults().end() || !(initial->second == value);
    if (row.effect == options::ExpertEffect::kHint && is_set) hints.push_back(name);
    if (row.effect != options::ExpertEffect::kOnly && row.effect != options::ExpertEffect::kLike) continue;
    const std::vector<std::string> values =
        row.effect == options::ExpertEffect::kOnly ? row.values : agreeing(name, session);
    if (std::find(values.begin(), values.end(), value.text()) != values.end()) continue;
    std::string expected;
    for (const std::string& each : values) expected += cat(expected.empty() ? "" : " or ", each);
    throwUser(
        ErrorCode::E0702,
        {.what = cat("option ", name, " = ", value.text(), " is not available: it would change what the model does"),
         .found = value.text(),
         .expected = row.option.empty() ? expected : cat(expected, ", as ", row.option, " says"),
         .remedy = row.option.empty() ? "remove the setting" : cat("remove the setting, and use ", row.option)});
  }
  return hints;
}

}  // namespace abele::compile
