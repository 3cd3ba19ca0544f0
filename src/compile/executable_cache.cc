#include "compile/executable_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <type_traits>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "compile/placement.h"
#include "compile/shard_trials.h"
#include "exe/bytes.h"
#include "ir/text.h"
#include "passes/stage_rules.h"

namespace abele::compile {
namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(50);

/// The kind of device that the program is captured on: the kind of the first device that is not a CPU, or "". Its
/// number does not matter. The stages say which devices share memory.
std::string kindOfDevice(const std::string& devices) {
  for (size_t begin = 0; begin < devices.size();) {
    const size_t end = std::min(devices.find(',', begin), devices.size());
    const std::string kind = devices.substr(begin, std::min(devices.find(':', begin), end) - begin);
    if (kind != "cpu") return kind;
    begin = end + 1;
  }
  return "";
}

/// The bytes of a key. The fields of a structure are bound by name, so a new field does not compile until it is added
/// here, or left out on purpose.
class KeyBytes {
 public:
  template <class First, class Second, class... More>
  void add(const First& first, const Second& second, const More&... more) {
    add(first);
    add(second);
    (add(more), ...);
  }
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>)
  void add(T value) {
    out_(value);
  }
  template <class T>
  void add(const std::vector<T>& list) {
    add(static_cast<uint64_t>(list.size()));
    for (const T& element : list) add(element);
  }
  template <class Key, class Value>
  void add(const std::map<Key, Value>& map) {
    add(static_cast<uint64_t>(map.size()));
    for (const auto& [key, value] : map) add(key, value);
  }
  void add(const ProcessOptions& processes) {
    const auto& [index, count, on_host, cores, devices, stages, group] = processes;
    (void)index, (void)on_host, (void)cores, (void)group;
    add(count, devices, stages);
  }
  void add(const ReplicaGrouping& grouping) {
    const auto& [parameter, type, shards, one_per_replica] = grouping;
    add(parameter, type, shards, one_per_replica);
  }
  void add(const plan::MemoryLimits& limits) {
    const auto& [every, of_device] = limits;
    add(every, of_device);
  }
  void add(const plan::TensorLocation& location) {
    const auto& [off_chip, min_elements] = location;
    add(off_chip, min_elements);
  }
  void add(const plan::Locations& locations) {
    const auto& [weights, optimizer_state, accumulators, activations, fetch_ahead] = locations;
    add(weights, optimizer_state, accumulators, activations, fetch_ahead);
  }
  void add(const exe::ShardingRules& sharding) {
    const auto& [weights, states, min_weight_elements, min_state_elements] = sharding;
    add(weights, states, min_weight_elements, min_state_elements);
  }
  void add(const passes::StageRules::ExplicitStage& stage) {
    const auto& [blocks, ipu, phase] = stage;
    add(blocks, ipu, phase);
  }
  void add(const passes::StageRules& rules) {
    const auto& [auto_stage, stages, ordered, cuts, devices, alternating, spaces, holds_whole, group] = rules;
    (void)cuts, (void)devices;  // cuts follow from the graph and the devices; addOptions adds the devices
    add(auto_stage, stages, ordered, alternating, spaces, holds_whole, group);
  }
  void add(const Anchor& anchor) {
    const auto& [short_name, long_name, mode, period] = anchor;
    add(short_name, long_name, mode, period);
  }
  void add(const OptimizerGroup& group) {
    const auto& [momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction] = group;
    add(momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction);
  }
  std::string take() { return out_.take(); }

 private:
  exe::Writer out_;
};

/// Adds every option that a compilation depends on.
void addOptions(KeyBytes& out, const ProgramOptions& options) {
#define ABELE_COMPILED(type, name, ...) out.add(options.name);
#define ABELE_AT_RUN(type, name, ...)
#include "compile/program_options.def"
  out.add(kindOfDevice(options.device), leavesSchedule(options) ? coresOfReplica(options) : 0,
          static_cast<int64_t>(splitsByItself(options) ? splitDevices(options) : 0));
}

void addOptimizer(KeyBytes& out, const OptimizerSpec& optimizer) {
  const auto& [kind, group_of, groups, accumulator, first_moment, second_moment, max_grad_norm, skips_overflow] =
      optimizer.rules;
  (void)skips_overflow;  // follows from the options
  out.add(kind, group_of, groups, accumulator, first_moment, second_moment, max_grad_norm);
}

}  // namespace

std::string cacheKey(const ir::Graph& captured, const ProgramOptions& options, const OptimizerSpec& optimizer,
                     const std::vector<ir::ValueId>& kept) {
  KeyBytes out;
  out.add(std::string(versionText()), ir::print(captured));
  addOptions(out, options);
  addOptimizer(out, optimizer);
  out.add(kept);
  if (passes::dividesStages(captured, options.stages)) out.add(machineOfTrials(options));
  const std::string bytes = out.take();
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

ExecutableCache::ExecutableCache(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const bool is_folder = std::filesystem::is_directory(folder_, error);
  ABELE_REQUIRE(is_folder && ::access(folder_.c_str(), W_OK) == 0, E0712,
                {.what = "the folder of the executable cache cannot be written",
                 .at = folder_,
                 .found = is_folder ? std::strerror(errno) : "the folder does not exist and cannot be made",
                 .remedy = cat("name another folder in enableExecutableCaching (or POPTORCH_CACHE_DIR), or pass ",
                               inLanguage("std::nullopt"))});
  removeLeftovers(folder_);
}

std::optional<CompiledProgram> ExecutableCache::find(const std::string& key) const {
  const std::string path = pathOf(key);
  std::error_code error_of_path;
  if (!std::filesystem::exists(path, error_of_path) && !error_of_path) return std::nullopt;
  try {
    CompiledProgram program = decodeProgram(readWholeFile(path, kProgramMagic));
    ABELE_REQUIRE(program.key == key, E0501,
                  {.what = cat("it holds another program, with the key ", program.key), .remedy = "delete the file"});
    return program;
  } catch (const Error& error) {
    warnOf(key, error);
    return std::nullopt;
  }
}

void ExecutableCache::warnOf(const std::string& key, const Error& error) const {
  log::warn("the cached program ", pathOf(key), " cannot be used and is compiled again: ", error.message().what,
            error.message().found.empty() ? "" : ": ", error.message().found);
}

void ExecutableCache::store(const std::string& key, const CompiledProgram& program) const {
  try {
    writeWholeFile(pathOf(key), encode(program));
  } catch (const Error& error) {
    log::warn("the program ", key, " cannot be stored in the cache ", folder_, ": ", error.message().found);
  }
}

ExecutableCache::Lock ExecutableCache::lock(const std::function<bool()>& poll) const {
  // Locks the folder itself. A lock file would have to be deleted, and that always leaves a race.
  const int file = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Lock lock(file);
  const int how = poll ? LOCK_EX | LOCK_NB : LOCK_EX;
  while (file >= 0 && ::flock(file, how) != 0 && (errno == EINTR || errno == EWOULDBLOCK)) {
    if (!poll) continue;
    ABELE_REQUIRE(!poll(), E0602,
                  {.what = "waiting for another process that compiles was interrupted",
                   .at = folder_,
                   .remedy = "compile again"});
    std::this_thread::sleep_for(kPollPeriod);
  }
  return lock;
}

ExecutableCache::Lock::~Lock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace abele::compile
