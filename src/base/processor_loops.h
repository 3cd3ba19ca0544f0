// Chooses among loops that are compiled once for each kind of processor.
#pragma once

namespace abele {

enum class Processor { kOther, kAvx2, kAvx512 };

/// The best kind of processor that this machine supports and that we have loops for.
Processor processor();

/// The loops for this processor; null if we have none for it.
template <class Loops>
const Loops* loopsFor(const Loops& avx2, const Loops& avx512) {
  switch (processor()) {
    case Processor::kAvx512: return &avx512;
    case Processor::kAvx2: return &avx2;
    default: return nullptr;
  }
}

}  // namespace abele
