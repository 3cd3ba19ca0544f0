// The implementation of the public models.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/turns.h"
#include "model/libtorch_model.h"

namespace abele {

class CompiledModel::Core : public model::LibTorchModel {
  using model::LibTorchModel::LibTorchModel;

 public:
  /// Types of the current program's inputs. Requires: the model is compiled.
  const std::vector<Type>& inputTypes() const { return program()->inputs; }
  const std::string& argumentForm() const { return program()->form; }
};

/// Holds a model's lock during one call.
class CompiledModel::Call {
 public:
  explicit Call(Core& core) : turn_(core.turns().take("the model")), core_(core) {}
  Core* operator->() const { return &core_; }

 private:
  Turns::Turn turn_;
  Core& core_;
};

/// Makes the public objects, and gives other functions of api/ access to their implementation.
class ModelAccess {
 public:
  template <class Model, class... Parts>
  static Model build(Parts&&... parts) {
    return Model(std::make_unique<CompiledModel::Core>(std::forward<Parts>(parts)...));
  }
  using Call = CompiledModel::Call;
  static Call enter(CompiledModel& model) { return model.enter(); }
};

}  // namespace abele
