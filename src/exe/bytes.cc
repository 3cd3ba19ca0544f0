#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "exe/bytes.h"

namespace abele::exe {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kIdentityBytes = 16;
constexpr size_t kHeaderBytes = kMagicBytes + 4 + 8 + 8;  // magic, version, payload size, checksum

/// A hash of the fields; the file has it after the fields, not in the header. If someone changes a field and writes a
/// new checksum, this hash still shows the change. The format is part of it, so fields of two formats never have the
/// same identity.
std::string identityOf(const char* magic, uint32_t version, std::string_view fields) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(fields.data(), fields.size(), XXH64(magic, kMagicBytes, version));
  Writer identity;
  uint64_t low = hash.low64, high = hash.high64;
  visitFields(identity, low, high);
  return identity.take();
}

}  // namespace

void reject(std::string what, std::string found, std::string expected) {
  throwUser(ErrorCode::E0501, {.what = std::move(what),
                               .found = std::move(found),
                               .expected = std::move(expected),
                               .remedy = "make the executable again with this version of Abele"});
}

std::string seal(const char* magic, uint32_t version, std::string_view fields) {
  Writer header;
  const std::string payload = cat(fields, identityOf(magic, version, fields));
  uint64_t size = payload.size(), checksum = XXH64(payload.data(), payload.size(), 0);
  visitFields(header, version, size, checksum);
  return std::string(magic, kMagicBytes) + header.take() + payload;
}

std::string_view unseal(const char* magic, uint32_t expected_version, std::string_view bytes, const char* kind) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), magic, kMagicBytes) != 0)
    reject(cat("not ", kind), cat(bytes.size(), " bytes"), cat("a file that starts with ", magic));
  Reader header(bytes.substr(kMagicBytes, kHeaderBytes - kMagicBytes));
  uint32_t version;
  uint64_t size, checksum;
  visitFields(header, version, size, checksum);
  if (version != expected_version) reject("another version of the format", cat(version), cat(expected_version));
  const std::string_view payload = bytes.substr(kHeaderBytes);
  if (size != payload.size()) reject("a truncated or padded file", cat(payload.size(), " bytes"), cat(size, " bytes"));
  if (XXH64(payload.data(), payload.size(), 0) != checksum) reject("a damaged file: the checksum does not match");
  if (payload.size() < kIdentityBytes) reject("the file ends too early");
  const std::string_view fields = payload.substr(0, payload.size() - kIdentityBytes);
  if (payload.substr(fields.size()) != identityOf(magic, expected_version, fields))
    reject("a changed file: its fields are not those that it was written with");
  return fields;
}

}  // namespace abele::exe
