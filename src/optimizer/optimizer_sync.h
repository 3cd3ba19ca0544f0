// Keeps a training model's optimizer and the devices equal: numbers and state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "modules/module.h"
#include "optimizer/optimizer_source.h"
#include "session/session.h"

namespace abele::optimizer {

/// Threads: the thread that holds the model's lock.
class OptimizerSync {
 public:
  /// A compiled program.
  struct Compiled {
    session::Session& session;
    std::function<std::vector<modules::NamedTensor>()> tensors;  // returns the module's present tensors
    bool scaling_varies = false;                                 // see OptimizerSource
    bool has_devices = true;                                     // false: there is no state to read
  };

  /// Null: no optimizer.
  OptimizerSource* source() const { return source_.get(); }
  compile::OptimizerSpec spec(const std::vector<modules::NamedTensor>& tensors) const;
  /// Sets the optimizer before anything is compiled.
  void use(std::shared_ptr<OptimizerSource> source);
  /// Sets an optimizer whose numbers apply from the next step on. Throws E0706, and then keeps the previous one.
  void set(std::shared_ptr<OptimizerSource> source, const Compiled& compiled);
  /// Sends the optimizer's numbers to the devices if they have others.
  void send(const Compiled& compiled);
  /// Call after a program was compiled with the present numbers or got them. numbers_vary: it fixes none of them.
  void noteProgram(const Compiled& compiled, bool numbers_vary = false);
  /// Call after the program was destroyed.
  void noteDestroyed();

  /// Whether the user has set a state on the host that the devices do not have yet.
  bool hasNewState() const { return state() && state()->isNew(); }
  /// Warns once if numbers changed without set(), because the devices do not get them.
  void warnOfUnsent();
  void beginStep(const Compiled& compiled);
  void endStep(int64_t updates);

  void upload(const Compiled& compiled);
  void uploadIfNew(const Compiled& compiled);
  void download(const Compiled& compiled);
  void downloadIfStale(const Compiled& compiled);
  /// Uploads the optimizer state together with the weights, if the user set one.
  void uploadWithWeights(const Compiled& compiled);
  void downloadWithWeights(const Compiled& compiled);
  /// Call after the devices got a state that the host does not have. updates: number of updates before it.
  void noteOther(int64_t updates, bool is_void);

  /// Number of updates that the devices' state includes.
  int64_t updates() const { return updates_; }

 private:
  HostState* state() const { return source_ ? source_->state() : nullptr; }
  /// Warns once if a new optimizer has no state: eager would start without one, but the devices keep theirs.
  void warnOfFresh(const Compiled& compiled);

  std::shared_ptr<OptimizerSource> source_;
  std::optional<OptimizerConstants> constants_;  // those of the program
  std::optional<OptimizerSpec> sent_;            // the numbers that the devices have
  bool has_unsent_ = false;                      // a warning was given about unsent numbers
  bool has_fresh_ = false;                       // a warning was given about an optimizer without state
  int64_t updates_ = 0;
};

}  // namespace abele::optimizer
