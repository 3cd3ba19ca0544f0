// How host/ sees inside the public classes of include/abele/. Private to host/public_*.cc.
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
#include "host/session.h"

namespace torch::nn {
class Module;
}

namespace abele {

/// An Options as the session wants it.
struct OptionsAccess {
  /// training also resolves OutputMode::kDefault.
  static host::SessionOptions session(const Options& options, bool training);
  static std::map<std::string, int64_t>& values(TensorLocationSettings& settings) { return settings.values_; }
  static const Options::Values& values(const Options& options) { return *options.values_; }
};

/// E0702 for a number that is no Schedule.
plan::ScheduleKind kindOf(Schedule schedule);

namespace host {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  bool trains = false;  // an optimizer updates it
};

// public_module.cc: the only unit that sees torch::nn::Module.
/// Parameters, then buffers, each once under its first name.
std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module);
/// Keeps the module alive when a std::shared_ptr owns it; else null.
std::shared_ptr<const void> ownerOf(torch::nn::Module& module);

// public_optim.cc
/// Throws E0706 for values that torch refuses, and for groups that name no parameter or one that another group has.
OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer, const std::vector<NamedTensor>& tensors);

/// The optimizer that makes this spec. Requires: it has one.
optim::Optimizer optimizerOf(const OptimizerSpec& spec);

/// Throws E0706 where a value that was fixed at compile is another one now.
void requireSameConstants(const optim::Optimizer& compiled, const optim::Optimizer& given);

// public_hooks.cc
void callPreCompileHooks();
void callPostCompileHooks();

// public_options.cc
CommGroup commGroup(CommGroupType type);

// public_report.cc
MemoryReport publicMemory(const plan::MemoryReport& report, const SessionOptions& options);
std::string reportText(const SessionReport& report);

}  // namespace host
}  // namespace abele
