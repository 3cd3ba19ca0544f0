// What a Model needs of the user's optimizer, in whatever language it is written.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/access.h"
#include "model/optimizer_constants.h"
#include "model/optimizer_fields.h"
#include "model/optimizer_state.h"

namespace abele::host {

/// What an optimizer keeps on the host of the devices' state. Threads: whoever has a turn of the model.
class HostState {
 public:
  virtual ~HostState() = default;
  /// Is it torch's own? Programs read it without asking, and torch's step() may change it.
  virtual bool isOfTorch() const = 0;
  /// Was it put there by the program, and not by the devices?
  virtual bool isNew() const = 0;
  /// Do the devices have a newer one?
  virtual bool isStale() const = 0;
  /// Is there anything that devices could take over?
  virtual bool isThere() const = 0;

  struct Taken {
    OptimizerTensors tensors;
    int64_t updates = 0;  // that it comes from
  };
  /// What the devices take over. current: what those of all processes have, for names and shapes.
  virtual Taken read(const StoredTensors& current, const std::vector<NamedTensor>& tensors) = 0;
  /// Takes over what the devices have after so many updates, one tensor after the other.
  virtual void write(const StoredTensors& state, const std::vector<NamedTensor>& tensors, int64_t updates) = 0;

  /// The devices have taken it over, or begin without one.
  virtual void noteUpload(bool is_taken) = 0;
  /// The devices have taken over another one. is_void: what is here is not theirs.
  virtual void noteStale(bool is_void) = 0;
  virtual void noteBeginOfStep() = 0;
  virtual void noteEndOfStep() = 0;
  /// The program that had it is gone.
  virtual void noteDestroyed() = 0;
};

/// Threads: whoever has a turn of the model.
class OptimizerSource {
 public:
  virtual ~OptimizerSource() = default;
  /// What it asks for now, of a model with these tensors. Throws E0706.
  virtual OptimizerSpec spec(const std::vector<NamedTensor>& tensors) = 0;
  /// The numbers that it has by now; nothing where they change with setOptimizer() only.
  virtual std::optional<OptimizerFields> fields() { return std::nullopt; }
  /// What a program that is compiled with it keeps. scaling_varies: loss scaling is automatic, and its start may
  /// change.
  virtual OptimizerConstants constants(bool /*scaling_varies*/) { return OptimizerConstants(); }
  /// Null: it keeps none.
  virtual HostState* state() { return nullptr; }
};

}  // namespace abele::host
