// The interface of a Model to the user's optimizer, in either language.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "modules/module.h"
#include "optimizer/optimizer_constants.h"
#include "optimizer/optimizer_fields.h"
#include "optimizer/optimizer_state.h"

namespace abele::optimizer {

/// The host's copy of the devices' optimizer state. Threads: the thread that holds the lock of the model.
class HostState {
 public:
  virtual ~HostState() = default;
  /// Returns true for torch's own state. Programs read it directly, and torch's step() may change it.
  virtual bool isOfTorch() const = 0;
  /// Returns true if the program, and not the devices, set the state.
  virtual bool isNew() const = 0;
  /// Returns true if the devices have a newer state.
  virtual bool isStale() const = 0;
  /// Returns true if there is a state that devices can take over.
  virtual bool isThere() const = 0;

  struct Taken {
    OptimizerTensors tensors;
    int64_t updates = 0;  // number of updates that made the state
  };
  /// Reads the state for the devices. current: the devices' state of all processes, for names and shapes.
  virtual Taken read(const session::StoredTensors& current, const std::vector<modules::NamedTensor>& tensors) = 0;
  /// Takes over the devices' state after this many updates, one tensor after the other.
  virtual void write(const session::StoredTensors& state, const std::vector<modules::NamedTensor>& tensors,
                     int64_t updates) = 0;

  /// The devices have taken over the state, or begin without one.
  virtual void noteUpload(bool is_taken) = 0;
  /// The devices have taken over another state. is_void: the host's state is no longer valid.
  virtual void noteStale(bool is_void) = 0;
  virtual void noteBeginOfStep() = 0;
  virtual void noteEndOfStep() = 0;
  /// The program with the state has ended.
  virtual void noteDestroyed() = 0;
};

/// Threads: the thread that holds the lock of the model.
class OptimizerSource {
 public:
  virtual ~OptimizerSource() = default;
  /// The spec for a model with these tensors, as the optimizer is now. Throws E0706.
  virtual compile::OptimizerSpec spec(const std::vector<modules::NamedTensor>& tensors) = 0;
  /// The present spec without parameters; nothing if numbers change only with setOptimizer().
  virtual std::optional<OptimizerSpec> numbers() { return std::nullopt; }
  /// The values that a program compiled with it fixes. scaling_varies: loss scaling is automatic, and its start may
  /// change.
  virtual OptimizerConstants constants(bool /*scaling_varies*/) { return OptimizerConstants(); }
  /// Returns null if the optimizer keeps no state.
  virtual HostState* state() { return nullptr; }
};

}  // namespace abele::optimizer
