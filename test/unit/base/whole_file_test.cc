// Files are old or new and complete, whatever happens to the process that writes them.
#include "base/whole_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../support/child.h"
#include "../../support/code_of.h"
#include "base/error.h"
#include "base/utf8.h"

namespace abele {
namespace {

namespace fs = std::filesystem;
using test::codeOf;
using test::inChild;
using test::killWriters;

class WholeFile : public testing::Test {
 protected:
  WholeFile() {
    std::string name = testing::TempDir() + "/abele_whole_file_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~WholeFile() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

TEST_F(WholeFile, ReadsWhatItWrote) {
  const std::string bytes("a\0b\xff", 4);
  writeWholeFile(path("file"), "old");
  writeWholeFile(path("file"), bytes);
  EXPECT_EQ(readWholeFile(path("file")), bytes);
  EXPECT_EQ(readWholeFile(path("file"), "a"), bytes);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(WholeFile, RefusesNamesThatTheSystemWouldShorten) {
  writeWholeFile(path("file"), "old");
  const std::string name = path("file") + std::string("\0.new", 5);
  EXPECT_EQ(codeOf([&] { writeWholeFile(name, "new"); }), "E0712");
  EXPECT_EQ(codeOf([&] { readWholeFile(name); }), "E0712");
  EXPECT_EQ(readWholeFile(path("file")), "old");
}

TEST_F(WholeFile, RefusesOtherFormatsAndSizesBeforeReadingThem) {
  // A sparse file of a terabyte, whose read would end the process.
  std::ofstream(path("large")) << "MAGIC";
  fs::resize_file(path("large"), uint64_t{1} << 40);
  EXPECT_EQ(codeOf([&] { readWholeFile(path("large"), "OTHER"); }), "E0501");
  EXPECT_EQ(codeOf([&] { readWholeFile(path("large"), "MAGIC"); }), "E0712");
  EXPECT_EQ(codeOf([&] { readWholeFile(path("large"), {}, 10); }), "E0712");
  EXPECT_EQ(codeOf([&] { readWholeFile(path("absent")); }), "E0712");
  std::ofstream(path("short")) << "MA";
  EXPECT_EQ(codeOf([&] { readWholeFile(path("short"), "MAGIC"); }), "E0501");
}

TEST_F(WholeFile, RefusesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_directory(path("folder"));
  for (const std::string& name : {path("pipe"), path("folder"), std::string("/dev/zero")}) {
    EXPECT_EQ(codeOf([&] { readWholeFile(name); }), "E0712") << name;
    EXPECT_EQ(codeOf([&] { writeWholeFile(name, "x"); }), "E0712") << name;
  }
  EXPECT_EQ(codeOf([&] { writeWholeFile(path("no/such/folder"), "x"); }), "E0712");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(WholeFile, ReplacesASymbolicLinkInsteadOfFollowingIt) {
  std::ofstream(path("victim")) << "untouched";
  fs::create_symlink(path("victim"), path("link"));
  writeWholeFile(path("link"), "new");
  EXPECT_FALSE(fs::is_symlink(path("link")));
  EXPECT_EQ(readWholeFile(path("victim")), "untouched");
  EXPECT_EQ(readWholeFile(path("link")), "new");
}

TEST_F(WholeFile, KeepsTheOldFileWhenTheDiskIsFull) {
  writeWholeFile(path("file"), "old");
  // The file limit of a process acts like a full disk: write() fails half way.
  const int status = inChild([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 16, 1 << 16};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return codeOf([&] { writeWholeFile(path("file"), std::string(1 << 20, 'x')); }) == "E0712" ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(readWholeFile(path("file")), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(WholeFile, RemovesLeftoversOfTheDeadOnly) {
  const std::string dead = path(".abele-0123456789abcdef.part"), alive = path(".abele-fedcba9876543210.part");
  std::ofstream{dead} << "half";
  std::ofstream{alive} << "half";
  std::ofstream{path("mine.part")} << "somebody's";
  const int held = ::open(alive.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  writeWholeFile(path("file"), "x");
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive) && fs::exists(path("mine.part")));
  ::close(held);
  removeLeftovers(folder_);
  EXPECT_FALSE(fs::exists(alive));
}

TEST_F(WholeFile, IsOldOrNewWhenItsWriterIsKilled) {
  const std::string contents[] = {std::string(200'000, 'a'), std::string(300'000, 'b')};
  writeWholeFile(path("file"), contents[0]);
  const auto write = [&](int k) { writeWholeFile(path("file"), contents[k % 2]); };
  killWriters(200'000, write, [&](int i) {
    const std::string found = readWholeFile(path("file"));
    ASSERT_TRUE(found == contents[0] || found == contents[1]) << i << ": " << found.size() << " bytes";
    removeLeftovers(folder_);
    ASSERT_EQ(entries(), 1u) << i;
  });
}

TEST_F(WholeFile, TakesNamesThatAreNoText) {
  const std::string name = path("caf\xe9");
  writeWholeFile(name, "x");
  EXPECT_EQ(readWholeFile(name), "x");
  try {
    readWholeFile(path("no \xff"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no \\xff"), std::string::npos) << error.what();
  }
}

TEST(Utf8, ShowsBytesThatAreNone) {
  EXPECT_EQ(toUtf8("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x8e"), "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8d\x8e");
  EXPECT_EQ(toUtf8("\xff|\xc3|\xe2\x82|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80"),
            "\\xff|\\xc3|\\xe2\\x82|\\xc0\\xaf|\\xed\\xa0\\x80|\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(toUtf8(std::string_view("a\0b\n\t\x1b[1m\x7f", 10)), "a\\x00b\n\t\\x1b[1m\\x7f");
}

}  // namespace
}  // namespace abele
