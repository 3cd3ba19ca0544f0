// For bind/ only: what each file adds to the module.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/utils/pybind.h>

namespace abele {
class Turns;
}
namespace abele::session {
struct SessionReport;
struct PerfCounters;
}  // namespace abele::session

namespace abele::bind {

void registerErrors(pybind11::module_& module);
void registerAnnotate(pybind11::module_& module);
void registerLog(pybind11::module_& module);
void registerSessionOptions(pybind11::module_& module);
void registerOptimizerSpec(pybind11::module_& module);
void registerSession(pybind11::module_& module);
void registerOptimizer(pybind11::module_& module);
void registerModel(pybind11::module_& module);
void registerVerify(pybind11::module_& module);
void registerCheckpoint(pybind11::module_& module);
void registerWeights(pybind11::module_& module);
void registerProgramFile(pybind11::module_& module);
void registerSavedProgram(pybind11::module_& module);
void registerSimulate(pybind11::module_& module);
void registerOperators(pybind11::module_& module);
void registerOffload(pybind11::module_& module);
void registerProcesses(pybind11::module_& module);
void registerServer(pybind11::module_& module);
void registerTracing(pybind11::module_& module);
void registerGenerators(pybind11::module_& module);
void registerGil(pybind11::module_& module);
void registerTurns(pybind11::module_& module);
void registerModuleNames(pybind11::module_& module);
void registerOptions(pybind11::module_& module);
void registerStrategies(pybind11::module_& module);
void registerDevices(pybind11::module_& module);

/// A context manager that takes these turns.
pybind11::object lockOf(std::shared_ptr<Turns> turns, std::string what);

pybind11::dict perfCountersDict(const session::PerfCounters& counters);
pybind11::dict reportDict(const session::SessionReport& report);

/// "train.py:88" of the innermost Python frame whose file name contains none of `excludes`; "" if no frame qualifies.
/// Returns: a function for any thread; it takes the GIL.
std::function<std::string()> sourceLocator(std::vector<std::string> excludes);

}  // namespace abele::bind
