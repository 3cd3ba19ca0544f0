#include "compile/executable_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "compile/default_schedule.h"
#include "compile/placement.h"
#include "exe/bytes.h"
#include "ir/text.h"

namespace abele::host {
namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(50);

template <class... Fields>
void add(exe::Writer& out, Fields... fields) {
  (out(fields), ...);
}

/// What the program is captured on: the kind of the first device that is no CPU, "" for none. Its number does not
/// matter; which devices share memory is in the stages.
std::string kindOfDevice(const std::string& devices) {
  for (size_t begin = 0; begin < devices.size();) {
    const size_t end = std::min(devices.find(',', begin), devices.size());
    const std::string kind = devices.substr(begin, std::min(devices.find(':', begin), end) - begin);
    if (kind != "cpu") return kind;
    begin = end + 1;
  }
  return "";
}

/// Every field that a compilation depends on. The bindings name all fields, so that a new one cannot be forgotten: it
/// does not compile before it is added here, or left out on purpose.
void addOptions(exe::Writer& out, const ProgramOptions& options) {
  const auto& [training, device_iterations, gradient_accumulation, replicas, input_group_size, input_grouping,
               processes, broadcast_buffers, groupings, mean_reduction, output_mode, output_period, strategy, schedule,
               schedule_rule, most_held, costs, recompute, recompute_to_fit, fusion, device_memory, locations, sharding,
               off_chip_memory_limit, off_chip_folder, trusts_reads, stages, enforce_pipeline_minimum, profile, name,
               device_group, num_devices, device, device_graphs, threads_per_device, has_seed, seed,
               floating_point_exceptions, stochastic_rounding, auto_loss_scaling, loss_scale_edge, loss_scale_threshold,
               loss_scale_period, anchors, updatable_buffers, synthetic_data, cache_path, initializers_path,
               share_weights, weights_owner, cache_lock] = options;
  (void)updatable_buffers, (void)share_weights, (void)weights_owner;
  // Not compiled in: which of the processes this is, where the weights are, threads, seed, what kernels check and how
  // they round, where data comes from, where the cache is.
  (void)threads_per_device, (void)has_seed, (void)seed, (void)synthetic_data, (void)cache_path, (void)cache_lock,
      (void)profile, (void)name, (void)device_group;
  (void)floating_point_exceptions, (void)stochastic_rounding, (void)loss_scale_edge, (void)loss_scale_threshold;
  (void)initializers_path, (void)loss_scale_period, (void)off_chip_memory_limit, (void)off_chip_folder;
  (void)device_graphs;
  (void)trusts_reads;  // what it adds is in the graph
  add(out, training, device_iterations, gradient_accumulation, mean_reduction, static_cast<int64_t>(output_mode),
      output_period, static_cast<int64_t>(strategy), static_cast<int64_t>(schedule),
      static_cast<int64_t>(schedule_rule), leavesSchedule(options) ? coresOfReplica(options) : 0, costs, recompute,
      recompute_to_fit, static_cast<int64_t>(fusion), device_memory.every,
      static_cast<uint64_t>(device_memory.of_device.size()), enforce_pipeline_minimum, num_devices,
      kindOfDevice(device), auto_loss_scaling);
  for (const auto& [device, bytes] : device_memory.of_device) add(out, static_cast<int64_t>(device), bytes);
  add(out, static_cast<uint64_t>(most_held.size()));
  for (int64_t held : most_held) add(out, held);
  add(out, replicas, processes.count, processes.devices, processes.stages, input_group_size,
      static_cast<int64_t>(input_grouping), broadcast_buffers);
  const auto& [weights, optimizer_state, accumulators, activations, fetch_ahead] = locations;
  for (const plan::TensorLocation& location : {weights, optimizer_state, accumulators, activations})
    add(out, location.off_chip, location.min_elements);
  add(out, fetch_ahead);
  const auto& [shard_weights, shard_states, min_weight_elements, min_state_elements] = sharding;
  add(out, shard_weights, shard_states, min_weight_elements, min_state_elements);
  for (const auto& [parameter, type, shards, one_per_replica] : groupings)
    add(out, parameter, static_cast<int64_t>(type), shards, one_per_replica);
  const auto& [auto_stage, explicit_stages, ordered, cuts, devices, alternating, spaces] = stages;
  // Where cuts lie follows from the graph.
  add(out, static_cast<int64_t>(splitsByItself(options) ? splitDevices(options) : 0));
  (void)cuts, (void)devices;
  add(out, static_cast<int64_t>(auto_stage), ordered, alternating, static_cast<uint64_t>(explicit_stages.size()));
  add(out, static_cast<uint64_t>(spaces.size()));
  for (int space : spaces) add(out, static_cast<int64_t>(space));
  for (const auto& [blocks, ipu, phase] : explicit_stages) {
    add(out, static_cast<uint64_t>(blocks.size()), ipu, phase);
    for (const std::string& block : blocks) add(out, block);
  }
  for (const auto& [short_name, long_name, mode, period] : anchors)
    add(out, short_name, long_name, static_cast<int64_t>(mode), period);
}

void addOptimizer(exe::Writer& out, const OptimizerSpec& optimizer) {
  const auto& [kind, group_of, groups, accumulator, first_moment, second_moment, max_grad_norm, skips_overflow] =
      optimizer.rules;
  (void)skips_overflow;  // follows from the options
  add(out, static_cast<int64_t>(kind), static_cast<int64_t>(accumulator), static_cast<int64_t>(first_moment),
      static_cast<int64_t>(second_moment), max_grad_norm);
  for (const auto& [name, group] : group_of) add(out, name, group);
  for (const auto& [momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction] : groups)
    add(out, momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction);
}

}  // namespace

std::string cacheKey(const ir::Graph& captured, const ProgramOptions& options, const OptimizerSpec& optimizer,
                     const std::vector<ir::ValueId>& kept) {
  exe::Writer out;
  add(out, std::string(versionText()), ir::print(captured));
  addOptions(out, options);
  addOptimizer(out, optimizer);
  for (ir::ValueId v : kept) add(out, v);
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
                 .found = is_folder ? std::strerror(errno) : "no folder, and none can be made",
                 .remedy = cat("name another folder in enableExecutableCaching (or POPTORCH_CACHE_DIR), or pass ",
                               inLanguage("None", "std::nullopt"))});
  removeLeftovers(folder_);
}

std::optional<CompiledProgram> ExecutableCache::find(const std::string& key) const {
  const std::string path = pathOf(key);
  std::error_code error_of_path;
  if (!std::filesystem::exists(path, error_of_path) && !error_of_path) return std::nullopt;
  try {
    CompiledProgram program = decodeProgram(readWholeFile(path, kProgramMagic));
    ABELE_REQUIRE(program.key == key, E0501,
                  {.what = cat("it holds another program, of the key ", program.key), .remedy = "delete the file"});
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
  // The folder itself is locked: a file of its own would have to be deleted, which cannot be done without a race.
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

}  // namespace abele::host
