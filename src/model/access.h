// Shared by model/ and api/: a module's tensors, its optimizer, hooks, texts of reports.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "abele/model.h"
#include "abele/optim.h"
#include "abele/options.h"
#include "abele/simulate.h"
#include "model/optimizer_constants.h"
#include "session/session.h"

namespace torch::nn {
class Module;
}

namespace abele {

namespace host {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  bool trains = false;  // an optimizer updates it
};

// module.cc
/// Parameters, then buffers, each once, under its first name.
std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module);
/// Keeps the module alive if a std::shared_ptr owns it; otherwise null.
std::shared_ptr<const void> ownerOf(torch::nn::Module& module);

/// The path ("encoder.0") of every registered module, parents first.
std::vector<std::string> modulePaths(const torch::nn::Module& module);

/// A description of a module without its tensors.
struct ModuleKind {
  std::string path;  // "encoder.0"; "" for the outermost module
  std::string text;  // its type; for torch's modules with options: "torch::nn::Dropout(p=0.5, inplace=false)"
  bool operator==(const ModuleKind&) const = default;
};
/// The kinds of a module and of all modules registered in it, parents first.
std::vector<ModuleKind> moduleKinds(const torch::nn::Module& module);

// optimizer.cc
/// Throws E0706 for values that torch refuses, for groups without a parameter, and for parameters in two groups.
OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer, const std::vector<NamedTensor>& tensors);

/// The optimizer that makes this spec. Requires: the spec has an optimizer.
optim::Optimizer optimizerOf(const OptimizerSpec& spec);

/// The values that a program compiled with it fixes. scaling_varies: as in OptimizerSource::constants().
OptimizerConstants constantsOf(const optim::Optimizer& optimizer, bool scaling_varies);

// hooks.cc
void callPreCompileHooks();
void callPostCompileHooks();
/// Runs the hooks around a compilation. The post hooks run even if the compilation fails.
class CompileHooks {
 public:
  CompileHooks() { callPreCompileHooks(); }
  ~CompileHooks();
  CompileHooks(const CompileHooks&) = delete;
  CompileHooks& operator=(const CompileHooks&) = delete;
};

// report.cc
MemoryReport publicMemory(const plan::MemoryReport& report, const ProgramOptions& options);
std::string reportText(const SessionReport& report);
/// The options to simulate a session's program with its own schedule, counts and limits.
SimulationOptions simulationOf(const Session& session);

}  // namespace host
}  // namespace abele
