// abele::environment and measureLinks: a description of this machine, and the times of its links.
#include "abele/environment.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "abele/model.h"
#include "base/cat.h"
#include "base/error.h"
#include "base/processor_name.h"
#include "base/version.h"
#include "compile/from_options.h"
#include "options/notes.h"
#include "options/store.h"
#include "processes/links.h"
#include "processes/processes.h"

extern char** environ;

namespace abele {
namespace {

/// Prefixes of variables of Abele and of launchers, and of those that set the number of threads.
constexpr std::string_view kVariables[] = {"ABELE_",  "POPTORCH_",   "POPLAR_",     "POPART_", "POPDIST_",
                                           "PVTI_",   "RANK=",       "WORLD_SIZE=", "MASTER_", "OMP_NUM_THREADS=",
                                           "GLOO_SO", "LD_PRELOAD=", "MALLOC_"};

/// The value after "key:" in the first line of /proc/meminfo that begins with the key. Empty if no line does.
std::string memoryField(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    const size_t first = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return {};
}

std::string cores() {
  cpu_set_t set;
  const int ours = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  const long all = ::sysconf(_SC_NPROCESSORS_ONLN);
  return cat(ours > 0 ? ours : all, " of ", all, ", ", processorName(), ", kernels for ", at::get_cpu_capability());
}

std::string hostMemory() {
  // "65807284 kB"
  const std::string all = memoryField("MemTotal"), free = memoryField("MemAvailable");
  if (all.empty()) return "unknown";
  const auto mib = [](const std::string& kib) { return std::strtoll(kib.c_str(), nullptr, 10) / 1024; };
  return cat(mib(all), " MiB, ", mib(free), " MiB available");
}

std::string accelerators() {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) return "none that this torch knows";
  return cat(count, " of ", c10::DeviceTypeName(*type, /*lower_case=*/true), " (ABELE_DEVICE chooses them)");
}

std::string devices() {
  int64_t count = 0;
  try {
    while (count < 64 && ipuHardwareIsAvailable(count + 1)) ++count;
  } catch (const Error& error) {
    return error.message().what;
  }
  if (count == 0) return "0: ABELE_EMULATED_DEVICES is 0, or POPTORCH_IPU_MODEL is set";
  return cat(count, " emulated, each some cores of this processor (ABELE_EMULATED_DEVICES)");
}

std::string links() {
  try {
    return processes::machineFileText();
  } catch (const Error& error) {
    return error.message().what;
  }
}

}  // namespace

std::vector<EnvironmentRow> environment() {
  std::vector<EnvironmentRow> rows = {{"abele", versionText()},
                                      {"libtorch", cat(TORCH_VERSION, ", which abele was built with")}};
  if (utsname system{}; ::uname(&system) == 0)
    rows.push_back({"system", cat(system.sysname, " ", system.release, ", ", system.machine)});
  rows.push_back({"cores", cores()});
  rows.push_back({"memory", hostMemory()});
  rows.push_back({"devices", devices()});
  rows.push_back({"accelerators", accelerators()});
  rows.push_back({"links", links()});
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    for (const std::string_view prefix : kVariables)
      if (text.substr(0, prefix.size()) == prefix) rows.push_back({"variable", std::string(text)});
  }
  return rows;
}

void measureLinks() {
  const compile::ProcessOptions place = processes::placeOfThisProcess();
  Options options;
  options.Distributed().configureProcessId(place.index, place.count);
  const options::NoteListener silence([](log::Level, const std::string&) {});  // notes are for programs that compile
  const compile::ProgramOptions program =
      compile::programOptions(OptionsAccess::values(options), /*training=*/true);  // inference connects no processes
  processes::measureLinks(program, processes::joinPeers(program));
}

}  // namespace abele
