#include "collective/gloo.h"

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

// LibTorch's library contains Gloo, but its headers hide it without this macro.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/environment.h"
#include "base/error.h"

namespace abele::collective {
namespace {

constexpr int64_t kDefaultTimeout = 1800;  // seconds, as in torch.distributed

/// The launcher's store, which torch.distributed finds by env://.
c10::intrusive_ptr<c10d::Store> storeOf(int64_t process, int64_t processes, std::chrono::milliseconds timeout) {
  std::string missing;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (environmentText(name).empty()) missing += (missing.empty() ? "" : " and ") + std::string(name);
  ABELE_REQUIRE(
      missing.empty(), E0714,
      {.what = cat("this is process ", process, " of ", processes, ", and no variable has the address of the others"),
       .found = missing + " not set",
       .expected = "the variables of a launcher, or a process group of c10d that is registered as abele",
       .remedy = "start the program with poprun or torchrun, or set MASTER_ADDR and MASTER_PORT in all "
                 "processes"});
  const bool is_agents = environmentText("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environmentInteger("MASTER_PORT", 0, 0, 65535));
  options.isServer = process == 0 && !is_agents;
  options.numWorkers = static_cast<size_t>(processes);
  options.timeout = timeout;
  options.multiTenant = !is_agents;
  auto store = c10::make_intrusive<c10d::TCPStore>(environmentText("MASTER_ADDR"), options);
  if (!is_agents) return store;
  return c10::make_intrusive<c10d::PrefixStore>(
      cat("/worker/attempt_", environmentInteger("TORCHELASTIC_RESTART_COUNT", 0)), std::move(store));
}

/// If a process cannot open the files that it needs, c10d accepts no connection, and all processes wait until their
/// timeout. When counted, process 0, which has the store, needed 12 files and 3 for each process; the others needed 5
/// and 1.
void requireFiles(int64_t process, int64_t processes) {
  const int64_t wanted = process == 0 ? 16 + 4 * processes : 8 + 2 * processes;
  std::vector<int> opened;
  while (static_cast<int64_t>(opened.size()) < wanted) {
    const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file < 0) break;
    opened.push_back(file);
  }
  for (const int file : opened) ::close(file);
  ABELE_REQUIRE(static_cast<int64_t>(opened.size()) == wanted, E0714,
                {.what = cat("process ", process, " of ", processes, " cannot open enough files for its connections"),
                 .found = cat("a limit that allows ", opened.size(), " more open files"),
                 .expected = cat(wanted, " or more"),
                 .remedy = "raise the limit of open files: ulimit -n 1024"});
}

/// This host's address, in digits, on the way to another host; "" if the host cannot be reached.
std::string addressTowards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;  // a connected datagram socket sends nothing
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  std::string address;
  for (const addrinfo* at = found; at != nullptr && address.empty(); at = at->ai_next) {
    const int probe = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (probe < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    std::array<char, NI_MAXHOST> digits{};
    if (::connect(probe, at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, digits.data(), digits.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      address = digits.data();
    ::close(probe);
  }
  return address;
}

/// If the user does not choose an address, c10d takes the address of this host's own name, which is often the loopback.
/// The address on the way to the common store is one that the other hosts can reach.
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> optionsOf(std::chrono::milliseconds timeout) {
  const std::string address =
      environmentText("GLOO_SOCKET_IFNAME").empty() ? addressTowards(environmentText("MASTER_ADDR")) : "";
  if (address.empty()) return c10d::ProcessGroupGloo::Options::create_default(timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> connectProcesses(const std::string& name, int64_t process, int64_t processes) {
  const std::chrono::seconds timeout(environmentInteger("ABELE_PROCESS_TIMEOUT", kDefaultTimeout));
  const int rank = static_cast<int>(process), size = static_cast<int>(processes);
  requireFiles(process, processes);
  try {
    c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<c10d::PrefixStore>(name, storeOf(process, processes, timeout));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, optionsOf(timeout));
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, std::move(gloo));
    return group;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throwUser(ErrorCode::E0714,
              {.what = cat("process ", process, " of ", processes, " cannot connect to the others"),
               .found = text.substr(0, text.find('\n')),
               .expected = "all processes within ABELE_PROCESS_TIMEOUT seconds",
               .remedy = "start all of them with the same MASTER_ADDR and MASTER_PORT, each with a different index"});
  }
}

}  // namespace abele::collective
