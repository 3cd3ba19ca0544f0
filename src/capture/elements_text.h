// The elements of a tensor, for messages.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace abele::capture {

/// "1, 2, 3, ..." for more than `most` elements. Requires: strided memory that can be read.
std::string elementsText(const at::Tensor& tensor, int64_t most);

}  // namespace abele::capture
