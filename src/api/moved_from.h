// For api/ only: objects that may have been moved from.
#pragma once

#include <memory>

#include "base/error.h"

namespace abele {

/// What the object holds. what: its name. Throws E0801 for one that was moved from.
template <class Impl>
Impl& here(const std::unique_ptr<Impl>& impl, const char* what) {
  ABELE_REQUIRE(impl, E0801,
                {.what = cat("this ", what, " was moved from"), .remedy = "use the object that it was moved to"});
  return *impl;
}

}  // namespace abele
