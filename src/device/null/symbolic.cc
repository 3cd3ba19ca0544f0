#include "device/null/symbolic.h"

#include <bit>
#include <cstring>

namespace abele::device {
namespace {

uint64_t scramble(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Calls fn(byte offset of the element) for every element in logical order.
template <class Fn>
void forEachElement(const Type& type, Fn&& fn) {
  const int64_t n = type.numel(), bytes = elementBytes(type.dtype);
  std::vector<int64_t> index(type.sizes.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * type.strides[d];
    fn(offset * bytes);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.sizes[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace

void Symbol::mix(int64_t number) { state_ = scramble(state_ * 31 + static_cast<uint64_t>(number) + 1); }

void Symbol::mix(std::string_view text) {
  mix(static_cast<int64_t>(text.size()));
  for (char c : text) mix(static_cast<int64_t>(c));
}

void Symbol::mixConstants(const Arg& arg) {
  mix(static_cast<int64_t>(arg.kind));
  if (arg.holdsIds()) return;
  mix(arg.i);
  mix(std::bit_cast<int64_t>(arg.d));
  mix(arg.s);
  for (int64_t v : arg.ints) mix(v);
}

Bytes Symbol::contents(int64_t which, int64_t bytes) const {
  Bytes out(static_cast<size_t>(bytes));
  const uint64_t seed = scramble(state_ + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(which + 1));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(scramble(seed + i) & 0xff);
  return out;
}

Bytes gather(const std::byte* memory, const Type& type) {
  Bytes out;
  const size_t bytes = static_cast<size_t>(elementBytes(type.dtype));
  out.reserve(static_cast<size_t>(type.numel()) * bytes);
  forEachElement(type, [&](int64_t at) { out.insert(out.end(), memory + at, memory + at + bytes); });
  return out;
}

void scatter(std::byte* memory, const Type& type, const Bytes& contents) {
  const size_t bytes = static_cast<size_t>(elementBytes(type.dtype));
  size_t from = 0;
  forEachElement(type, [&](int64_t at) {
    std::memcpy(memory + at, contents.data() + from, bytes);
    from += bytes;
  });
}

}  // namespace abele::device
