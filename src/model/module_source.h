// What a Model needs of the user's module, in whatever language the module is written.
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

/// Threads: whoever has a turn of the model.
class ModuleSource {
 public:
  /// What the front end needs to put results together.
  struct Captured {
    std::string result_form;                       // form of the result (calls/forms.h); a front end may leave it empty
    std::shared_ptr<void> structure;               // the front end's own; the model keeps it with the program
    calls::Constants constants = {};               // results that are the same for all inputs and weights
    std::vector<size_t> written = {};              // inputs that forward writes into
    std::shared_ptr<modules::Frozen> frozen = {};  // state that the program keeps; null: it was loaded
    std::vector<std::string> reshaped = {};        // buffers that the front end gives another shape after a call
  };
  using Compile = std::function<session::Session&(compile::Program&)>;

  virtual ~ModuleSource() = default;
  /// Is there a forward to compile? A program may have been loaded in its place.
  virtual bool hasForward() const { return true; }
  /// Parameters, then buffers, each once, as the module has them now.
  virtual std::vector<modules::NamedTensor> tensors() = 0;
  /// Of the program that is compiled or loaded next.
  virtual compile::ProgramOptions options() = 0;
  /// Prepares what a capture needs around forward, then calls `compile` once with the program for arguments of this
  /// form. The model adds its tensors to the program; compile returns the session that has it on its devices.
  virtual Captured capture(const std::string& form, const std::vector<modules::NamedTensor>& tensors,
                           const Compile& compile) = 0;
  /// The module and all in it, parents first.
  virtual std::vector<modules::ModuleKind> modules() = 0;
  /// This model trains the module from now on. Throws E0709 where another one does.
  virtual void claim(const std::vector<modules::NamedTensor>& /*tensors*/) {}
  /// Connects to the other processes of the program, if there are some and sessions do not connect by themselves.
  virtual void join() {}
  /// The model no longer trains the module.
  virtual void release() {}
  /// Type and shape as messages say them in the module's language.
  virtual std::string typeText(const at::Tensor& tensor) const = 0;
  /// Other models that train some of the tensors and have a Sharing of their own. When the list may have changed,
  /// generation() has changed too.
  virtual std::vector<std::shared_ptr<Model>> trainers() { return {}; }
  virtual uint64_t generation() const { return 0; }
  /// What generation() was when a training of some of the tensors last ended.
  virtual uint64_t lastEnd() { return 0; }
};

}  // namespace abele::model
