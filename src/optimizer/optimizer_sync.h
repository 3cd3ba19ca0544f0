// The optimizer of a training model and its devices: which numbers and which state they have of it.
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

/// Threads: whoever has a turn of the model.
class OptimizerSync {
 public:
  /// A program that is compiled.
  struct Compiled {
    session::Session& session;
    std::function<std::vector<modules::NamedTensor>()> tensors;  // the module's of now: asked for where they are needed
    bool scaling_varies = false;                                 // see OptimizerSource
    bool has_devices = true;                                     // false: it has no state to read
  };

  /// Null: no optimizer.
  OptimizerSource* source() const { return source_.get(); }
  compile::OptimizerSpec spec(const std::vector<modules::NamedTensor>& tensors) const;
  /// The optimizer of now, before anything is compiled.
  void use(std::shared_ptr<OptimizerSource> source);
  /// Its numbers count from the next step on. Throws E0706; then the one before it stays.
  void set(std::shared_ptr<OptimizerSource> source, const Compiled& compiled);
  /// Its numbers to the devices, where they have others.
  void send(const Compiled& compiled);
  /// A program was compiled with the numbers of now, or has got them. numbers_vary: it fixes none of them.
  void noteProgram(const Compiled& compiled, bool numbers_vary = false);
  /// There is no program any more.
  void noteDestroyed();

  /// Is there a state on the host that the program put there since?
  bool hasNewState() const { return state() && state()->isNew(); }
  /// Numbers changed without set(): says so once, since the devices do not know.
  void warnOfUnsent();
  void beginStep(const Compiled& compiled);
  void endStep(int64_t updates);

  void upload(const Compiled& compiled);
  void uploadIfNew(const Compiled& compiled);
  void download(const Compiled& compiled);
  void downloadIfStale(const Compiled& compiled);
  /// With the weights, where the user asks for that.
  void uploadWithWeights(const Compiled& compiled);
  void downloadWithWeights(const Compiled& compiled);
  /// The devices go on from a state that the host does not have. updates: that it comes from.
  void noteOther(int64_t updates, bool is_void);

  /// That the devices' state comes from.
  int64_t updates() const { return updates_; }

 private:
  HostState* state() const { return source_ ? source_->state() : nullptr; }
  /// Eager's optimizer would begin without a state: says so once.
  void warnOfFresh(const Compiled& compiled);

  std::shared_ptr<OptimizerSource> source_;
  std::optional<OptimizerConstants> constants_;  // of the program
  std::optional<OptimizerSpec> sent_;            // the numbers that the devices have
  bool has_unsent_ = false;                      // and it was said that they lack some
  bool has_fresh_ = false;                       // and it was said that another optimizer has no state
  int64_t updates_ = 0;
};

}  // namespace abele::optimizer
