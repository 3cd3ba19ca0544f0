// What model/ and api/ share: a module's tensors, its optimizer, hooks, texts of reports.
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
/// Parameters, then buffers, each once under its first name.
std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module);
/// Keeps the module alive when a std::shared_ptr owns it; else null.
std::shared_ptr<const void> ownerOf(torch::nn::Module& module);

/// "encoder.0" of all that are registered, parents first.
std::vector<std::string> modulePaths(const torch::nn::Module& module);

/// What a module is beside its tensors.
struct ModuleKind {
  std::string path;  // "encoder.0"; "" of the outermost one
  std::string text;  // its type; of torch's modules also their options, "torch::nn::Dropout(p=0.5, inplace=false)"
  bool operator==(const ModuleKind&) const = default;
};
/// Of a module and all that are registered in it, parents first.
std::vector<ModuleKind> moduleKinds(const torch::nn::Module& module);

// optimizer.cc
/// Throws E0706 for values that torch refuses, and for groups that name no parameter or one that another group has.
OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer, const std::vector<NamedTensor>& tensors);

/// The optimizer that makes this spec. Requires: it has one.
optim::Optimizer optimizerOf(const OptimizerSpec& spec);

/// What a program that is compiled with it keeps. scaling_varies: as OptimizerSource::constants().
OptimizerConstants constantsOf(const optim::Optimizer& optimizer, bool scaling_varies);

// hooks.cc
void callPreCompileHooks();
void callPostCompileHooks();
/// Around a compilation. A hook is told that it ended, however it ends.
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
/// How the simulator runs a session's program: by its own schedule, counts and limits.
SimulationOptions simulationOf(const Session& session);

}  // namespace host
}  // namespace abele
