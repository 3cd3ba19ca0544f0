// For bind/ only: the functions by which each file adds its parts to the module.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
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

/// Adds the parts of one file to the module.
using Register = void(pybind11::module_& module);
Register registerErrors, registerGenerators, registerGil, registerAnnotate, registerModuleNames, registerLog,
    registerSessionOptions, registerStrategies, registerOptions, registerIpuConfig, registerDevices,
    registerOptimizerSpec, registerTurns, registerSession, registerOptimizer, registerModel, registerVerify,
    registerProgramFile, registerCheckpoint, registerWeights, registerSavedProgram, registerServer, registerSimulate,
    registerOperators, registerProcesses, registerTracing;

using TensorRow = std::tuple<std::string, at::Tensor, bool>;  // name, tensor, is a parameter

/// A Python context manager that holds this lock.
pybind11::object lockOf(std::shared_ptr<Turns> turns, std::string what);

pybind11::dict perfCountersDict(const session::PerfCounters& counters);
pybind11::dict reportDict(const session::SessionReport& report);

/// "train.py:88" of the innermost Python frame whose file name contains none of `excludes`; "" if no frame qualifies.
/// Returns: a function for any thread; it takes the GIL.
std::function<std::string()> sourceLocator(std::vector<std::string> excludes);

}  // namespace abele::bind
