// The interface between a Model and the user's module, which may be written in C++ or Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calls/arguments.h"
#include "modules/module.h"
#include "session/session.h"

namespace abele::modules {
class Frozen;
}  // namespace abele::modules

namespace abele::model {

class Model;

/// Threads: the thread that holds the model's lock.
class ModuleSource {
 public:
  /// Data of a capture that the front end needs to build results.
  struct Captured {
    std::string result_form;                       // form of the result (calls/forms.h); a front end may leave it empty
    std::shared_ptr<void> structure;               // any object of the front end, kept with the program
    calls::Constants constants = {};               // results that are the same for all inputs and weights
    std::vector<size_t> written = {};              // inputs that forward writes into
    std::shared_ptr<modules::Frozen> frozen = {};  // state that the program keeps; null: it was loaded
    std::vector<std::string> replaced = {};        // buffers that forward replaces
  };
  using Compile = std::function<session::Session&(compile::Program&)>;

  virtual ~ModuleSource() = default;
  /// Whether there is a forward to compile. A loaded program may have none.
  virtual bool hasForward() const { return true; }
  /// The module's present parameters, then buffers, each once.
  virtual std::vector<modules::NamedTensor> tensors() = 0;
  /// The options of the program that is compiled or loaded next.
  virtual compile::ProgramOptions options() = 0;
  /// Prepares what a capture needs around forward, then calls `compile` once with the program for arguments of this
  /// form. The model adds its tensors to the program; compile returns the session that has it on its devices.
  virtual Captured capture(const std::string& form, const std::vector<modules::NamedTensor>& tensors,
                           const Compile& compile) = 0;
  /// The module and all modules in it, parents first.
  virtual std::vector<modules::ModuleKind> modules() = 0;
  /// This model trains the module from now on. Throws E0709 if another one does.
  virtual void claim(const std::vector<modules::NamedTensor>& /*tensors*/) {}
  /// Connects to the other processes of the program, if there are any and sessions do not connect by themselves.
  virtual void join() {}
  /// The model no longer trains the module.
  virtual void release() {}
  /// Type and shape for messages, in the module's language.
  virtual std::string typeText(const at::Tensor& tensor) const = 0;
  /// Other models, with a Sharing of their own, that train some of the tensors. generation() changes whenever this list
  /// may have changed.
  virtual std::vector<std::shared_ptr<Model>> trainers() { return {}; }
  virtual uint64_t generation() const { return 0; }
  /// The value of generation() when a training of some of the tensors last ended.
  virtual uint64_t lastEnd() { return 0; }
};

}  // namespace abele::model
