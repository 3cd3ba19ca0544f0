// gc-reset: for scripts that reset a device after an error, in the form of Graphcore's tool. Devices are emulated and
// end with their programs, so there is nothing to reset. Source: spec tools.md.
#include <CLI/CLI.hpp>
#include <iostream>

#include "gc_devices.h"
#include "tool.h"

int main(int argc, char** argv) {
  using namespace abele;
  int64_t id = 0;
  CLI::App app("Resets a device; they are emulated, so that there is nothing to reset", "gc-reset");
  app.add_option("-d,--device-id", id, "the device")->required();
  return tools::runTool(app, argc, argv, [&] {
    tools::requireDevice("gc-reset", id, registry::deviceGroups().size());
    std::cout << "device " << id << " is emulated: there is nothing to reset\n";
  });
}
