// Bytes that identify values. The null device writes them instead of numbers, and tests compute the same bytes from a
// Graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/arg.h"
#include "base/type.h"

namespace abele::device {

using Bytes = std::vector<std::byte>;

/// An operator call as a number: mixes name, constants and operand contents one after the other.
class Symbol {
 public:
  explicit Symbol(std::string_view name) { mix(name); }
  void mix(std::string_view text);
  void mix(const Bytes& contents) {
    mix(std::string_view(reinterpret_cast<const char*>(contents.data()), contents.size()));
  }
  void mix(int64_t number);
  /// Mixes in the parts of an argument that are not tensors.
  void mixConstants(const Arg& arg);
  /// `bytes` pseudo-random bytes that depend on all that was mixed in, and on `which`.
  Bytes contents(int64_t which, int64_t bytes) const;

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15u;
};

/// The elements of a tensor in logical order, read from and written to memory that starts at its first element.
Bytes gather(const std::byte* memory, const Type& type);
void scatter(std::byte* memory, const Type& type, const Bytes& contents);

}  // namespace abele::device
