// Program files and entries of the cache with something changed in them, as mutations_test.cc for executables. With the
// header's checksum repaired every one is refused. With everything repaired, whatever is read is written as the same
// bytes. Compiled with AddressSanitizer, together with all that reads them. ABELE_MUTATIONS: how many files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/whole_file.h"
#include "calls/forms.h"
#include "file_mutator.h"
#include "sealed_program.h"

namespace abele::test {
namespace {

int numFiles() {
  const char* asked = std::getenv("ABELE_MUTATIONS");
  return asked ? std::atoi(asked) : 3000;
}

/// What this version writes (make_programs).
std::vector<std::string> seeds(const char* kind) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(ABELE_PROGRAMS) / kind))
    files.push_back(readWholeFile(entry.path()));
  std::sort(files.begin(), files.end());  // folders have no order
  return files;
}

/// False: refused, with E0501. Anything else than these two fails the test.
bool isRead(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0501) << error.what();
    return false;
  }
}

bool isReadProgram(const std::string& bytes) {
  return isRead([&] {
    const compile::CompiledProgram program = compile::decodeProgram(bytes);
    EXPECT_EQ(compile::encode(program), bytes);
  });
}

bool isReadFile(const std::string& bytes) {
  return isRead([&] {
    const files::ProgramFile file = files::decodeProgramFile(bytes);
    EXPECT_EQ(files::encode(file), bytes);
    EXPECT_TRUE(calls::tensorOrder(file.form, file.form)) << file.form;
    calls::tensorOrder(file.form, file.result_form);
    EXPECT_EQ(compile::encode(compile::decodeProgram(file.program)), file.program);
  });
}

struct Kind {
  const char* name;
  const char* magic;
  uint32_t version;
  bool (*is_read)(const std::string&);
  void (*reseal_inside)(char* fields, size_t size);
  std::string (*changed)(const std::string& file, std::mt19937_64& random);
};

template <auto decode>
std::string changedBy(const std::string& file, std::mt19937_64& random) {
  auto contents = decode(file);
  FileMutator{random}(contents);
  return encode(contents);
}

const Kind kKinds[] = {{"program_file", files::kProgramFileMagic, files::kProgramFileVersion, isReadFile, resealProgram,
                        changedBy<files::decodeProgramFile>},
                       {"cache_entry", compile::kProgramMagic.data(), compile::kProgramVersion, isReadProgram,
                        resealExecutable, changedBy<compile::decodeProgram>}};

/// Bytes changed anywhere in the fields, and everything sealed anew.
std::string withOtherBytes(const Kind& kind, const std::string& file, std::mt19937_64& random) {
  std::string fields = fieldsOf(file);
  FileMutator{random}(fields);
  kind.reseal_inside(fields.data(), fields.size());
  return exe::seal(kind.magic, kind.version, fields);
}

class FileMutations : public testing::TestWithParam<Kind> {};

TEST_P(FileMutations, AreRefusedWhereTheHeaderIsRepaired) {
  const std::vector<std::string> files = seeds(GetParam().name);
  ASSERT_GE(files.size(), 4u);
  std::mt19937_64 random(21);
  for (int i = 0; i < numFiles(); ++i) {
    const std::string& original = files[static_cast<size_t>(i) % files.size()];
    for (const std::string& changed :
         {GetParam().changed(original, random), withOtherBytes(GetParam(), original, random)}) {
      if (changed == original) continue;
      EXPECT_FALSE(GetParam().is_read(underIdentityOf(changed, original))) << "file " << i << " is another program";
    }
  }
}

TEST_P(FileMutations, AreRefusedOrReadWhereEverythingIsRepaired) {
  const std::vector<std::string> files = seeds(GetParam().name);
  std::mt19937_64 random(22);
  int read = 0;
  for (int i = 0; i < numFiles(); ++i) {
    SCOPED_TRACE(i);
    const std::string& original = files[static_cast<size_t>(i) % files.size()];
    ASSERT_TRUE(GetParam().is_read(original));
    read += GetParam().is_read(i % 3 == 0 ? withOtherBytes(GetParam(), original, random)
                                          : GetParam().changed(original, random));
  }
  std::printf("%d files: %d refused, %d read\n", numFiles(), numFiles() - read, read);
  EXPECT_GT(read, numFiles() / 20);
  EXPECT_GT(numFiles() - read, numFiles() / 4);
}

INSTANTIATE_TEST_SUITE_P(Of, FileMutations, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace abele::test
