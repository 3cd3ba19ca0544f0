// Gives a Model access to a torch::nn::Module and the forward of a C++ program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abele/model.h"
#include "model/module_source.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_source.h"

namespace abele::model {

/// Threads: see ModuleSource.
class LibTorchModule : public ModuleSource {
 public:
  /// module: null if the weights come from a file. forward: empty for a loaded program. line: where the program wrapped
  /// the model, "train.cpp:88".
  LibTorchModule(torch::nn::Module* module, detail::StructuredForward forward, std::string line,
                 compile::ProgramOptions options);
  ~LibTorchModule() override;

  bool hasForward() const override { return static_cast<bool>(forward_); }
  std::vector<modules::NamedTensor> tensors() override;
  compile::ProgramOptions options() override { return program_options; }
  Captured capture(const std::string& form, const std::vector<modules::NamedTensor>& tensors,
                   const Compile& compile) override;
  std::vector<modules::ModuleKind> modules() override;
  std::string typeText(const at::Tensor& tensor) const override;
  void claim(const std::vector<modules::NamedTensor>& tensors) override;
  void release() override;
  std::vector<std::shared_ptr<Model>> trainers() override;
  uint64_t generation() const override;
  uint64_t lastEnd() override;

  /// Sets the model that uses this module.
  void setModel(std::weak_ptr<Model> model) { model_ = std::move(model); }
  torch::nn::Module* module() const { return module_; }
  const detail::StructuredForward& forward() const { return forward_; }
  const std::string& line() const { return line_; }

  compile::ProgramOptions program_options;  // may change until a program is compiled

 private:
  torch::nn::Module* const module_;
  const std::shared_ptr<const void> owner_;
  const detail::StructuredForward forward_;
  const std::string line_;
  std::weak_ptr<Model> model_;
};

/// An optimizer of the public API, with the values of setOptimizer(). Only the devices have its state.
class LibTorchOptimizer : public optimizer::OptimizerSource {
 public:
  explicit LibTorchOptimizer(optim::Optimizer given) : value(std::move(given)) {}
  compile::OptimizerSpec spec(const std::vector<modules::NamedTensor>& tensors) override {
    return optimizer::optimizerSpec(value, tensors);
  }
  optimizer::OptimizerConstants constants(bool scaling_varies) override {
    return optimizer::constantsOf(value, scaling_varies);
  }

  const optim::Optimizer value;
};

}  // namespace abele::model
