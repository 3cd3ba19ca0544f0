// Files of executables with a changed field. Two questions. With the header's checksum repaired, is every one refused:
// the identity says which contents the writer sealed, so that no other program runs in its place? With everything
// repaired, as by somebody who writes files of the format: is what is accepted run to its end, inside its memory?
// Compiled with AddressSanitizer and UBSan, together with all that reads and runs executables. ABELE_MUTATIONS: how
// many files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/whole_file.h"
#include "mutator.h"
#include "null_runs.h"
#include "sealed.h"

namespace abele::test {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;  // of a program that the test runs

int numFiles() {
  const char* asked = std::getenv("ABELE_MUTATIONS");
  return asked ? std::atoi(asked) : 3000;
}

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(ABELE_SEEDS))
    files.push_back(readWholeFile(entry.path(), "ABELEABX"));
  return files;
}

std::optional<exe::Executable> decoded(const std::string& bytes) {
  try {
    return exe::decode(bytes);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0501) << error.what();
    return std::nullopt;
  }
}

TEST(Mutations, RunNoOtherProgramWhereTheHeaderIsRepaired) {
  const std::vector<std::string> files = seeds();
  ASSERT_GE(files.size(), 8u);
  std::mt19937_64 random(11);
  for (int i = 0; i < numFiles(); ++i) {
    const std::string& original = files[static_cast<size_t>(i) % files.size()];
    exe::Executable changed = exe::decode(original);
    exe::mutate(changed, random);
    std::string bytes = exe::encode(changed);
    if (bytes == original) continue;
    EXPECT_FALSE(decoded(underIdentityOf(bytes, original))) << "file " << i << " runs another program";
    // And any byte of the file.
    bytes = original;
    bytes[kHeaderBytes + random() % (bytes.size() - kHeaderBytes)] ^= static_cast<char>(1 + random() % 255);
    EXPECT_FALSE(decoded(withHeaderRepaired(bytes))) << "file " << i << " with another byte";
  }
}

TEST(Mutations, RunToTheirEndWhereEverythingIsRepaired) {
  const std::vector<std::string> files = seeds();
  std::mt19937_64 random(12);
  int refused = 0, large = 0, ran = 0, same = 0;
  for (int i = 0; i < numFiles(); ++i) {
    const exe::Executable original = exe::decode(files[static_cast<size_t>(i) % files.size()]);
    exe::Executable changed = original;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) exe::mutate(changed, random);
    const std::optional<exe::Executable> accepted = decoded(exe::encode(changed));
    if (!accepted) {
      ++refused;
    } else if (bytesOf(*accepted) > kMostBytes) {
      ++large;
    } else {
      SCOPED_TRACE(i);
      std::string contents;
      ASSERT_NO_THROW(contents = runOnNull(*accepted)) << exe::print(*accepted);
      ++ran;
      same += contents == runOnNull(original);
    }
  }
  RecordProperty("refused", refused);
  RecordProperty("ran", ran);
  std::printf(
      "%d files: %d refused, %d would need more memory than the test gives, %d ran to their end, %d of them with "
      "the numbers of the original\n",
      refused + large + ran, refused, large, ran, same);
  EXPECT_GT(refused, numFiles() / 4);
  EXPECT_GT(ran, numFiles() / 20);
}

}  // namespace
}  // namespace abele::test
