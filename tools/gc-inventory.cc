// gc-inventory: attributes of all devices that programs see, in the form of Graphcore's tool. Source: spec tools.md.
#include <CLI/CLI.hpp>
#include <iostream>
#include <vector>

#include <nlohmann/json.hpp>

#include "registry/attributes.h"
#include "tool.h"

int main(int argc, char** argv) {
  using namespace abele;
  bool as_json = false;
  CLI::App app("Attributes of all devices that programs are told of; they are emulated", "gc-inventory");
  app.add_flag("-j,--json", as_json, "as JSON");
  return tools::runTool(app, argc, argv, [&] {
    const std::vector<registry::Attached> all = registry::attached();
    const std::vector<registry::DeviceGroup> groups = registry::deviceGroups();
    nlohmann::ordered_json devices = nlohmann::ordered_json::array();
    for (size_t number = 0; number < groups.size(); ++number) {
      nlohmann::ordered_json device;
      for (const auto& [name, value] : registry::attributesOf(number, groups[number], all)) {
        device[name] = value;
        if (!as_json) std::cout << name << ": " << value << "\n";
      }
      if (!as_json) std::cout << "\n";
      devices.push_back(std::move(device));
    }
    if (as_json) std::cout << nlohmann::ordered_json{{"devices", devices}}.dump(2) << "\n";
  });
}
