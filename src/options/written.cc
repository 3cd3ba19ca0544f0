// Setters of the kind "written" in the table of options: those with rules of their own.
// Source: spec options.md sections 2 to 6.
#include <mutex>
#include <set>
#include <string_view>

#include "base/environment.h"
#include "base/fork.h"
#include "options/notes.h"
#include "options/objects.h"
#include "options/store.h"

namespace abele::options {
namespace {

using Values = Options::Values;

constexpr std::string_view kOwnSettings = "abele.";

void inputReplicaGrouping(Values& values, const OptionList& arguments) {
  int64_t size = *integer<int64_t>(arguments[0]);
  OptionValue type = arguments[1];
  const auto given = static_cast<CommGroupType>(type.as<EnumMember>()->value);
  if (given == CommGroupType::kAll)
    throw OptionError(
        ErrorCode::E0702,
        {.what = "inputReplicaGrouping does not take CommGroupType.All", .remedy = "make one group of all replicas"},
        Refused::kValue);
  if (given == CommGroupType::kNoGrouping) {
    size = 1;
    type = member("CommGroupType", "Consecutive");
  }
  const auto replicas = values.get<int64_t>("replication_factor");
  if (size < 1 || replicas % size != 0)
    throw OptionError(ErrorCode::E0702,
                      {.what = cat("the input group size is ", size, " for ", replicas, " replicas"),
                       .expected = cat("a divisor of ", replicas),
                       .remedy = "call replicationFactor first"},
                      Refused::kValue);
  values.set("Options", "input_group_size", OptionValue(size));
  values.set("Options", "input_cgt", type);
}

void setExecutionStrategy(Values& values, const OptionList& arguments) {
  const ExecutionStrategy& strategy = *arguments[0].object<ExecutionStrategy>();
  requireDistinctBlocks(strategy);
  values.strategy = strategy;
}

void outputMode(Values& values, const OptionList& arguments) {
  const bool every_n = arguments[0].as<EnumMember>()->value == static_cast<int64_t>(OutputMode::kEveryN);
  if (every_n && arguments[1].isNone())
    throw OptionError(ErrorCode::E0702,
                      {.what = "outputMode(EveryN) without a period", .expected = "output_return_period of 1 or more"},
                      Refused::kCondition);
  if (!every_n && !arguments[1].isNone())
    note(log::Level::kInfo, cat("output_return_period has no effect with ", arguments[0].text()));
  values.set("Options", "output_mode", arguments[0]);
  if (!arguments[1].isNone()) values.set("Options", "output_return_period", arguments[1]);
}

void anchorTensor(Values& values, const OptionList& arguments) {
  const bool as_model = arguments[2].isNone();
  const OptionValue mode = as_model ? member("OutputMode", "Default") : arguments[2];
  const bool every_n = mode.as<EnumMember>()->name == "EveryN";
  const int64_t period = every_n ? *integer<int64_t>(arguments[3]) : 1;
  if (period < 1)
    throw OptionError(ErrorCode::E0702,
                      {.what = cat("anchorTensor with a period of ", period), .expected = "a period of 1 or more"},
                      Refused::kCondition);
  OptionMap anchors = values.map("anchored_tensors");
  anchors[*arguments[0].as<std::string>()] =
      OptionValue(OptionList{arguments[1], OptionValue(as_model), mode, OptionValue(period)});
  values.set("Options", "anchored_tensors", OptionValue(std::move(anchors)));
}

void fusion(Values& values, const OptionList& arguments) {
  const std::string& level = *arguments[0].as<std::string>();
  ABELE_REQUIRE(level == "exact" || level == "fast" || level == "off", E0702,
                {.what = cat("there is no fusion \"", level, "\""), .expected = "\"exact\", \"fast\" or \"off\""});
  values.set("Options", "fusion_level", arguments[0]);
}

void outputRank(Values& values, const OptionList& arguments) {
  const std::string& rank = *arguments[0].as<std::string>();
  ABELE_REQUIRE(
      rank == "all" || rank == "first" || rank == "last" || rank == "owner", E0702,
      {.what = cat("there is no output rank \"", rank, "\""), .expected = "\"all\", \"first\", \"last\" or \"owner\""});
  values.set("Distributed", "output_rank", arguments[0]);
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
  const bool has_folder = !arguments[0].isNone() && !arguments[0].as<std::string>()->empty();
  const std::string folder = has_folder ? *arguments[0].as<std::string>() : ".";
  const std::string environment = environmentText("POPLAR_ENGINE_OPTIONS");
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"debug.allowOutOfMemory", "true"}, {"autoReport.directory", folder}, {"autoReport.all", "true"}}) {
    if (environment.find(name) != std::string::npos)
      note(log::Level::kWarn, cat("POPLAR_ENGINE_OPTIONS sets ", name, ": it wins over enableProfiling"));
    engine[name] = OptionValue(value);
  }
  values.popart["engineOptions"] = OptionValue(std::move(engine));
}

void appendToLocationExcludes(Values& values, const OptionList& arguments) {
  OptionList all = values.list("source_location_excludes");
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
  note(log::Level::kWarn, "Jit.traceModel is deprecated and has no effect");
  if (*arguments[0].as<bool>())
    throw OptionError(ErrorCode::E0702,
                      {.what = "Jit.traceModel(true): the tracer of earlier versions no longer exists"},
                      Refused::kValue);
}

/// Abele's own options were expert settings once: "abele.deviceType" calls the setter deviceType. Two have new names.
void callOwn(Values& values, const std::string& name, OptionValue value) {
  std::string setter = name.substr(kOwnSettings.size());
  if (setter == "isCompiling") setter = "captureAsCompiling";
  if (setter == "allowShortPipeline") {
    setter = "enforcePipelineMinimum";
    if (const bool* allows = value.as<bool>()) value = OptionValue(!*allows);
  }
  static auto& mutex = *new ProcessMutex;
  static auto* warned = new std::set<std::string>();
  const bool is_first = [&] { return std::lock_guard(mutex), warned->insert(name).second; }();
  if (is_first) note(log::Level::kWarn, cat("_Popart.set(\"", name, "\") is deprecated: use options.", setter, "()"));
  values.call(setter, {std::move(value)});
}

void setExpert(Values& values, const OptionList& arguments) {
  const std::string& name = *arguments[0].as<std::string>();
  if (name.starts_with(kOwnSettings)) return callOwn(values, name, arguments[1]);
  const EnumMember* as_enum = arguments[1].as<EnumMember>();
  values.popart[name] = as_enum ? OptionValue(as_enum->value) : arguments[1];
}

void setEnvVarNames(Values& values, const OptionList& arguments) {
  const ProcessPlace place =
      processPlace(arguments[0].as<std::string>()->c_str(), arguments[1].as<std::string>()->c_str());
  values.set("Distributed", "distributed_process_id", OptionValue(place.index));
  values.set("Distributed", "num_distributed_processes", OptionValue(place.count));
}

using Function = void (*)(Values&, const OptionList&);

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all = {
      {"inputReplicaGrouping", inputReplicaGrouping},
      {"setExecutionStrategy", setExecutionStrategy},
      {"outputMode", outputMode},
      {"anchorTensor", anchorTensor},
      {"fusion", fusion},
      {"enableExecutableCaching", enableExecutableCaching},
      {"enableProfiling", enableProfiling},
      {"appendToLocationExcludes", appendToLocationExcludes},
      {"Precision.setPartialsType", setPartialsType},
      {"Jit.traceModel", traceModel},
      {"_Popart.set", setExpert},
      {"Distributed.outputRank", outputRank},
      {"Distributed.setEnvVarNames", setEnvVarNames},
  };
  return all;
}

}  // namespace

void callWritten(Values& values, const OptionRow& row, const OptionList& arguments) {
  const auto it = functions().find(row.path);
  ABELE_CHECK(it != functions().end(), row.path);
  it->second(values, arguments);
}

}  // namespace abele::options
