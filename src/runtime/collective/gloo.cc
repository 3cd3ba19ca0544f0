#include "runtime/collective/gloo.h"

#include <chrono>

// LibTorch's library has Gloo.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/environment.h"
#include "base/error.h"

namespace abele::runtime {
namespace {

constexpr int64_t kDefaultTimeout = 1800;  // seconds; torch.distributed's

/// The launcher's store, as torch.distributed finds it by env://.
c10::intrusive_ptr<c10d::Store> storeOf(int64_t process, int64_t processes, std::chrono::milliseconds timeout) {
  std::string missing;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (environmentText(name).empty()) missing += (missing.empty() ? "" : " and ") + std::string(name);
  ABELE_REQUIRE(missing.empty(), E0714,
                {.what = cat("this is process ", process, " of ", processes, ", and nothing says where the others are"),
                 .found = missing + " not set",
                 .expected = "the variables of a launcher, or a group of c10d's that is registered as abele",
                 .remedy = "start the program with poprun or torchrun, or set MASTER_ADDR and MASTER_PORT in all "
                           "processes"});
  const bool is_agents = environmentText("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environmentInteger("MASTER_PORT", 0));
  options.isServer = process == 0 && !is_agents;
  options.numWorkers = static_cast<size_t>(processes);
  options.timeout = timeout;
  options.multiTenant = !is_agents;
  auto store = c10::make_intrusive<c10d::TCPStore>(environmentText("MASTER_ADDR"), options);
  if (!is_agents) return store;
  return c10::make_intrusive<c10d::PrefixStore>(
      cat("/worker/attempt_", environmentInteger("TORCHELASTIC_RESTART_COUNT", 0)), std::move(store));
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> connectProcesses(const std::string& name, int64_t process, int64_t processes) {
  const std::chrono::seconds timeout(environmentInteger("ABELE_PROCESS_TIMEOUT", kDefaultTimeout));
  const int rank = static_cast<int>(process), size = static_cast<int>(processes);
  try {
    c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<c10d::PrefixStore>(name, storeOf(process, processes, timeout));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size,
                                                            c10d::ProcessGroupGloo::Options::create_default(timeout));
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, std::move(gloo));
    return group;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throwUser(ErrorCode::E0714,
              {.what = cat("process ", process, " of ", processes, " does not find the others"),
               .found = text.substr(0, text.find('\n')),
               .expected = "all processes within ABELE_PROCESS_TIMEOUT seconds",
               .remedy = "start all of them with the same MASTER_ADDR and MASTER_PORT, each with an index of its own"});
  }
}

}  // namespace abele::runtime
