// Shows a model, a report and a simulation in notebooks, as small self-contained pieces of HTML.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace abele::report {

/// A report's figures, under the names of Python's report(), and sentences about them.
std::string notebookOfReport(const std::string& title, const nlohmann::ordered_json& report,
                             const std::vector<std::string>& facts);
/// A model that is not compiled.
std::string notebookOfModel(const std::string& title);
/// A simulation's figures, a drawing of the step, and a row for each device. trace: in Chrome's format.
std::string notebookOfSimulation(const nlohmann::ordered_json& simulation, const nlohmann::ordered_json& trace);

}  // namespace abele::report
