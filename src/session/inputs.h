// Checks the inputs of a call.
#pragma once

#include <string>
#include <vector>

#include "base/type.h"

namespace at {
class Tensor;
}

namespace abele::session {

/// The remedy in messages about different inputs, if forward can be compiled again.
inline constexpr const char* kCompileAgain =
    "call destroy() and compile again with the new inputs, or wrap the model once more for them";

/// Throws E0704 at the first input that differs from the compiled ones. Other strides are allowed, unless the compiled
/// strides repeat elements.
void checkSameInputs(const std::vector<Type>& compiled, const std::vector<at::Tensor>& inputs,
                     const std::string& remedy = kCompileAgain);

}  // namespace abele::session
