#include "capture/lazy_copies.h"

#include <algorithm>

#include "base/error.h"

namespace abele::capture {

void LazyCopies::add(const at::Tensor& source, const at::Tensor& copy) {
  copies_.emplace_back(source.storage().getWeakStorageImpl(), copy.storage().getWeakStorageImpl());
}

void LazyCopies::requireNoneOf(const at::Tensor& written, const Position& position) {
  if (copies_.empty()) return;
  std::erase_if(copies_, [](const auto& pair) { return pair.first.expired() || pair.second.expired(); });
  const c10::StorageImpl* storage = written.storage().unsafeGetStorageImpl();
  const bool is_shared = std::any_of(copies_.begin(), copies_.end(), [&](const auto& pair) {
    return pair.first._unsafe_get_target() == storage || pair.second._unsafe_get_target() == storage;
  });
  ABELE_REQUIRE(
      !is_shared, E0106,
      {.what = "a write into a tensor of which a conjugated or negated view is in use",
       .at = position.str(),
       .remedy = cat("use ", inLanguage("torch::conj_physical"), ", or clone() the tensor before it is written")});
}

}  // namespace abele::capture
