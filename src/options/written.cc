// Setters of the kind "written" in the table of options: those with rules of their own.
// Source: spec options.md sections 2 to 6.
#include "base/environment.h"
#include "base/log.h"
#include "options/store.h"

namespace abele::host {
namespace {

using Values = Options::Values;

void inputReplicaGrouping(Values& values, const OptionList& arguments) {
  int64_t size = *arguments[0].as<int64_t>();
  OptionValue type = arguments[1];
  const auto given = static_cast<CommGroupType>(type.as<EnumMember>()->value);
  ABELE_REQUIRE(
      given != CommGroupType::kAll, E0702,
      {.what = "inputReplicaGrouping does not take CommGroupType.All", .remedy = "make one group of all replicas"});
  if (given == CommGroupType::kNoGrouping) {
    size = 1;
    type = member("CommGroupType", "Consecutive");
  }
  const auto replicas = values.get<int64_t>("replication_factor");
  ABELE_REQUIRE(size >= 1 && replicas % size == 0, E0702,
                {.what = cat("the input group size is ", size, " for ", replicas, " replicas"),
                 .expected = cat("a divisor of ", replicas),
                 .remedy = "call replicationFactor first"});
  values.set("Options", "input_group_size", OptionValue(size));
  values.set("Options", "input_cgt", type);
}

void setExecutionStrategy(Values& values, const OptionList& arguments) {
  const ExecutionStrategy& strategy = *arguments[0].object<ExecutionStrategy>();
  std::vector<std::string> seen;
  for (const Stage& stage : strategy.stages)
    for (const std::string& block : stage.blocks) {
      for (const std::string& other : seen)
        ABELE_REQUIRE(other != block, E0702,
                      {.what = cat("block \"", block, "\" is in two stages"),
                       .expected = "each block in one stage",
                       .remedy = "remove it from one"});
      seen.push_back(block);
    }
  values.strategy = strategy;
}

void setAvailableMemoryProportion(Values& values, const OptionList& arguments) {
  values.set("Options", "available_memory_proportion", arguments[0]);
}

void outputMode(Values& values, const OptionList& arguments) {
  const bool every_n = arguments[0].as<EnumMember>()->value == static_cast<int64_t>(OutputMode::kEveryN);
  ABELE_REQUIRE(!every_n || !arguments[1].isNone(), E0702,
                {.what = "outputMode(EveryN) without a period", .expected = "output_return_period of 1 or more"});
  if (!every_n && !arguments[1].isNone()) log::info("output_return_period has no effect with ", arguments[0].text());
  values.set("Options", "output_mode", arguments[0]);
  if (!arguments[1].isNone()) values.set("Options", "output_return_period", arguments[1]);
}

void anchorTensor(Values& values, const OptionList& arguments) {
  const bool as_model = arguments[2].isNone();
  const OptionValue mode = as_model ? member("OutputMode", "Default") : arguments[2];
  const bool every_n = mode.as<EnumMember>()->name == "EveryN";
  const int64_t period = every_n ? *arguments[3].as<int64_t>() : 1;
  ABELE_REQUIRE(period > 0, E0702,
                {.what = cat("anchorTensor with a period of ", period), .expected = "a period of 1 or more"});
  OptionMap anchors = *values.find("anchored_tensors")->as<OptionMap>();
  anchors[*arguments[0].as<std::string>()] =
      OptionValue(OptionList{arguments[1], OptionValue(as_model), mode, OptionValue(period)});
  values.set("Options", "anchored_tensors", OptionValue(std::move(anchors)));
}

void useOfflineIpuTarget(Values& values, const OptionList& arguments) {
  values.set("Options", "connection_type", member("ConnectionType", "Never"));
  values.set("Options", "ipu_version", arguments[0]);
}

void maxRepeatLogs(Values& values, const OptionList& arguments) {
  values.set("Options", "max_repeat_logs", arguments[0].isNone() ? OptionValue(kNoMost) : arguments[0]);
}

void enableExecutableCaching(Values& values, const OptionList& arguments) {
  const bool use = !arguments[0].isNone() && !arguments[0].as<std::string>()->empty();
  values.popart.erase("cachePath");
  if (use) values.popart["cachePath"] = arguments[0];
  values.popart["enableEngineCaching"] = OptionValue(use);
}

void enableProfiling(Values& values, const OptionList& arguments) {
  const OptionValue* old = values.expert("engineOptions");
  OptionMap engine = old && old->as<OptionMap>() ? *old->as<OptionMap>() : OptionMap();
  const std::string folder = arguments[0].isNone() ? "." : *arguments[0].as<std::string>();
  const std::string environment = environmentText("POPLAR_ENGINE_OPTIONS");
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"debug.allowOutOfMemory", "true"}, {"autoReport.directory", folder}, {"autoReport.all", "true"}}) {
    if (environment.find(name) != std::string::npos)
      log::warn("POPLAR_ENGINE_OPTIONS sets ", name, ": it wins over enableProfiling");
    engine[name] = OptionValue(value);
  }
  values.popart["engineOptions"] = OptionValue(std::move(engine));
}

void appendToLocationExcludes(Values& values, const OptionList& arguments) {
  OptionList all = *values.find("source_location_excludes")->as<OptionList>();
  const OptionList& more = *arguments[0].as<OptionList>();
  all.insert(all.end(), more.begin(), more.end());
  values.set("Options", "source_location_excludes", OptionValue(std::move(all)));
}

void setPartialsType(Values& values, const OptionList& arguments) {
  const OptionValue name(arguments[0].as<EnumMember>()->name == "Half" ? "half" : "float");
  values.popart["partialsTypeMatMuls"] = name;
  values.popart["convolutionOptions"] = OptionValue(OptionMap{{"partialsType", name}});
}

void traceModel(Values&, const OptionList& arguments) {
  log::warn("Jit.traceModel is deprecated and has no effect");
  ABELE_REQUIRE(!*arguments[0].as<bool>(), E0702,
                {.what = "Jit.traceModel(true): the tracer of earlier versions does not exist any more"});
}

void setExpert(Values& values, const OptionList& arguments) {
  const EnumMember* as_enum = arguments[1].as<EnumMember>();
  values.popart[*arguments[0].as<std::string>()] = as_enum ? OptionValue(as_enum->value) : arguments[1];
}

void setPatterns(Values& values, const OptionList& arguments) {
  values.popart["patterns_level"] = arguments[1];
  values.popart["patterns"] = arguments[0];
}

void setProcess(Values& values, int64_t id, int64_t count) {
  values.set("Distributed", "distributed_process_id", OptionValue(id));
  values.set("Distributed", "num_distributed_processes", OptionValue(count));
}

using Function = void (*)(Values&, const OptionList&);

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all = {
      {"inputReplicaGrouping", inputReplicaGrouping},
      {"setExecutionStrategy", setExecutionStrategy},
      {"setAvailableMemoryProportion", setAvailableMemoryProportion},
      {"outputMode", outputMode},
      {"anchorTensor", anchorTensor},
      {"useOfflineIpuTarget", useOfflineIpuTarget},
      {"maxRepeatLogs", maxRepeatLogs},
      {"enableExecutableCaching", enableExecutableCaching},
      {"enableProfiling", enableProfiling},
      {"appendToLocationExcludes", appendToLocationExcludes},
      {"Precision.setPartialsType", setPartialsType},
      {"Jit.traceModel", traceModel},
      {"_Popart.set", setExpert},
      {"_Popart.setPatterns", setPatterns},
      {"enableSyntheticData",
       [](Values& values, const OptionList& arguments) {
         values.popart["syntheticDataMode"] = OptionValue(int64_t{*arguments[0].as<bool>() ? 2 : 0});
       }},
      {"disableModuleNamescope",
       [](Values& values, const OptionList&) {
         values.set("Options", "module_namescope_enabled", OptionValue(false));
       }},
      {"Training.setConvolutionDithering",
       [](Values& values, const OptionList& arguments) {
         values.popart["convolutionOptions"] = OptionValue(OptionMap{{"enableConvDithering", arguments[0]}});
       }},
      {"Precision.halfFloatCasting",
       [](Values&, const OptionList&) { log::warn("Precision.halfFloatCasting is deprecated and has no effect"); }},
      {"Precision.runningStatisticsAlwaysFloat",
       [](Values&, const OptionList&) {
         log::warn("Precision.runningStatisticsAlwaysFloat is deprecated and has no effect");
       }},
      {"_Popart.setEngineOptions",
       [](Values& values, const OptionList& arguments) { values.popart["engineOptions"] = arguments[0]; }},
      {"Distributed.configureProcessId",
       [](Values& values, const OptionList& arguments) {
         setProcess(values, *arguments[0].as<int64_t>(), *arguments[1].as<int64_t>());
       }},
      {"Distributed.setEnvVarNames",
       [](Values& values, const OptionList& arguments) {
         setProcess(values, environmentInteger(arguments[1].as<std::string>()->c_str(), 0),
                    environmentInteger(arguments[0].as<std::string>()->c_str(), 1));
       }},
      {"Distributed.disable", [](Values& values, const OptionList&) { setProcess(values, 0, 1); }},
  };
  return all;
}

}  // namespace

void callWritten(Values& values, const OptionRow& row, const OptionList& arguments) {
  const auto it = functions().find(row.path);
  if (it != functions().end()) return it->second(values, arguments);
  // One argument that is stored as it was checked.
  ABELE_CHECK(arguments.size() == 1 && row.key != "-", row.path);
  values.set(row.group, row.key, arguments[0]);
}

}  // namespace abele::host
