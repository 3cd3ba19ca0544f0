#include "capture/outcome.h"

#include <utility>

namespace abele::capture {
namespace {

thread_local Outcome outcome;

}  // namespace

Outcome takeOutcome() { return std::exchange(outcome, {}); }
void noteShapeFailure(bool failed) { outcome.failed_by_shapes = failed; }
void noteSteered() { outcome.is_steered = true; }

}  // namespace abele::capture
