// Chooses among loops that are compiled once for each kind of processor.
#pragma once

namespace abele {

enum class Processor { kOther, kAvx2, kAvx512 };

/// The most capable kind of processor that this machine supports and that has loops here.
Processor processor();

/// The loops for this processor; null if there are none.
template <class Loops>
const Loops* loopsFor(const Loops& avx2, const Loops& avx512) {
  switch (processor()) {
    case Processor::kAvx512: return &avx512;
    case Processor::kAvx2: return &avx2;
    default: return nullptr;
  }
}

}  // namespace abele
