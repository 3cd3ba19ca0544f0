#include "abele/verify.h"

#include "api/core.h"

namespace abele {

Verification detail::verify(CompiledModel& model, const std::vector<Flat>& batches) {
  return model.verifyFlat(batches);
}
Verification CompiledModel::verifyFlat(const std::vector<detail::Flat>& batches) { return enter()->verify(batches); }

}  // namespace abele
