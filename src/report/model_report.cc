// The text table of a model's last step, the use of its memory, and the options of its simulation.
#include <algorithm>

#include "options/value.h"
#include "report/model_report.h"
#include "report/report_words.h"

namespace abele::report {

std::string reportText(const session::SessionReport& report) {
  size_t longest = 5;
  for (const session::SessionReport::Stage& stage : report.stages) longest = std::max(longest, stage.name.size());
  const int width = static_cast<int>(longest);
  std::string text = printed("%-*s  device  busy ms  waiting ms  peak MiB\n", width, "stage");
  for (const session::SessionReport::Stage& stage : report.stages)
    text += printed("%-*s  %6d  %7.2f  %10.2f  %8.2f\n", width, stage.name.c_str(), stage.device,
                    static_cast<double>(stage.busy_ns) / 1e6, static_cast<double>(stage.waiting_ns) / 1e6,
                    static_cast<double>(stage.peak_bytes) / (1 << 20));
  text += printed("step %.2f ms, bubble %.1f %%, capture %.3f s, compile %.3f s\n",
                  static_cast<double>(report.step_ns) / 1e6, 100 * report.bubble, report.capture_s, report.compile_s);
  if (!report.schedule.empty())
    text +=
        "schedule " + report.schedule + (report.schedule_reason.empty() ? "" : ": " + report.schedule_reason) + "\n";
  if (!report.links.empty()) text += "links " + report.links + "\n";
  return text;
}

MemoryReport publicMemory(const plan::MemoryReport& report, const compile::ProgramOptions& options) {
  MemoryReport result;
  for (const plan::DeviceMemory& device : report.devices) {
    DeviceMemory& own = result.devices.emplace_back();
    own.device = device.device;
    own.peak_bytes = device.peak_bytes;
    own.off_chip_bytes = device.off_chip_bytes;
    for (size_t c = 0; c < plan::kNumMemoryClasses; ++c)
      own.by_class[plan::memoryClassName(static_cast<plan::MemoryClass>(c))] = device.by_class[c];
    if (const int64_t limit = options.device_memory.of(device.device); limit >= 0) own.limit_bytes = limit;
  }
  result.text = plan::memoryText(report);
  result.json = plan::memoryJson(report);
  return result;
}

SimulationOptions simulationOf(const session::Session& session) {
  const exe::Executable& executable = session.executable();
  const std::string schedule = session.report().schedule;
  const plan::MemoryLimits& limits = session.deviceMemory();
  SimulationOptions options{.sharded = schedule == "sharded",
                            .training = executable.training,
                            .device_iterations = executable.device_iterations,
                            .gradient_accumulation = executable.accumulation,
                            .bytes_of_device = limits.of_device};
  for (const auto& [name, each] : options::schedulesByName())  // the only schedule of inference has no name here
    if (name == schedule) options.schedule = each;
  if (limits.every >= 0) options.device_bytes = limits.every;
  return options;
}

}  // namespace abele::report
