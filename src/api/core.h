// Behind the public models.
#pragma once

#include "base/turns.h"
#include "model/libtorch_model.h"

namespace abele {

class CompiledModel::Core : public host::LibTorchModel {
  using host::LibTorchModel::LibTorchModel;
};

/// One call of a model.
class CompiledModel::Call {
 public:
  explicit Call(Core& core) : turn_(core.turns().take("the model")), core_(core) {}
  Core* operator->() const { return &core_; }

 private:
  Turns::Turn turn_;
  Core& core_;
};

}  // namespace abele
