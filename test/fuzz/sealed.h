// What a changed file looks like when somebody who knows the format closes it again. Fuzzers change bytes anywhere;
// with the old checksums of what is stored inside a file, its readers would refuse almost all of that unread.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "exe/bytes.h"

namespace abele::test {

inline constexpr size_t kMagicBytes = 8, kChecksumAt = 20, kHeaderBytes = 28, kIdentityBytes = 16;

/// The fields of a file of any of the formats. Requires: it was written by seal().
inline std::string fieldsOf(std::string_view file) {
  return std::string(file.substr(kHeaderBytes, file.size() - kHeaderBytes - kIdentityBytes));
}

/// Writes header and identity anew where the magic is that of the format; the size stays.
inline void reseal(char* file, size_t size, const char* magic, uint32_t version) {
  if (size < kHeaderBytes + kIdentityBytes || std::memcmp(file, magic, kMagicBytes) != 0) return;
  const std::string sealed = exe::seal(magic, version, fieldsOf({file, size}));
  std::memcpy(file, sealed.data(), size);
}

/// With a checksum in the header that fits the rest: what somebody makes who does not know what an identity is.
inline std::string withHeaderRepaired(std::string file) {
  const uint64_t checksum =
      exe::littleEndian<uint64_t>(XXH64(file.data() + kHeaderBytes, file.size() - kHeaderBytes, 0));
  std::memcpy(file.data() + kChecksumAt, &checksum, sizeof checksum);
  return file;
}

/// The fields of the first under the identity of the second.
inline std::string underIdentityOf(std::string file, std::string_view original) {
  std::memcpy(file.data() + file.size() - kIdentityBytes, original.data() + original.size() - kIdentityBytes,
              kIdentityBytes);
  return withHeaderRepaired(std::move(file));
}

/// The string that is the next field at `at`, which moves behind it; nothing where there is none.
inline std::pair<char*, size_t> nextString(char* fields, size_t size, size_t& at) {
  uint64_t length = 0;
  if (size - at < sizeof length) return {nullptr, 0};
  std::memcpy(&length, fields + at, sizeof length);
  length = exe::littleEndian(length);
  at += sizeof length;
  if (length > size - at) return {nullptr, 0};
  at += length;
  return {fields + at - length, length};
}

}  // namespace abele::test
