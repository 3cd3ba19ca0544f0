// Which programs have which devices, as other processes see it: live programs only.
#include "registry/attachment.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../support/code_of.h"
#include "base/cat.h"
#include "registry/devices.h"

namespace abele::registry {
namespace {

namespace fs = std::filesystem;
using test::codeOf;

/// A process that runs attach(), and lives until end() or kill(). The returned model is attached.
class Program {
 public:
  template <class Attach>
  explicit Program(const Attach& attach) {
    int begun[2], stop[2];
    EXPECT_EQ(::pipe(begun) | ::pipe(stop), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(stop[1]);
      const auto attachment = attach();
      char c = attachment ? '1' : '0';
      if (::write(begun[1], &c, 1) != 1) ::_exit(2);
      while (::read(stop[0], &c, 1) < 0) {
      }
      ::_exit(0);
    }
    ::close(begun[1]);
    ::close(stop[0]);
    char c = '0';
    EXPECT_EQ(::read(begun[0], &c, 1), 1);
    EXPECT_EQ(c, '1');
    ::close(begun[0]);
    stop_ = stop[1];
  }
  ~Program() { end(SIGKILL); }
  pid_t pid() const { return pid_; }
  void end(int signal) {
    if (stop_ < 0) return;
    ::kill(pid_, signal);
    ::waitpid(pid_, nullptr, 0);
    ::close(stop_);
    stop_ = -1;
  }

 private:
  pid_t pid_ = 0;
  int stop_ = -1;
};

class Registry : public testing::Test {
 protected:
  Registry() {
    std::string name = testing::TempDir() + "/abele_registry_XXXXXX";
    base_ = ::mkdtemp(name.data());
    ::setenv("ABELE_REGISTRY", base_.c_str(), 1);
    ::setenv("ABELE_EMULATED_DEVICES", "4", 1);
  }
  ~Registry() override {
    for (const char* name :
         {"ABELE_REGISTRY", "ABELE_EMULATED_DEVICES", "ABELE_EXCLUSIVE_DEVICES", "POPTORCH_WAIT_FOR_IPU"})
      ::unsetenv(name);
    fs::permissions(base_, fs::perms::owner_all);
    fs::remove_all(base_);
  }

  fs::path own() const { return base_ / cat("abele-", ::geteuid()); }
  size_t numRecords() const {
    size_t number = 0;
    for (const auto& entry : fs::directory_iterator(own())) number += entry.path().filename() != "choosing";
    return number;
  }
  /// "4711: 0 1" of every attached model.
  static std::vector<std::string> attachedTexts() {
    std::vector<std::string> texts;
    for (const Attached& each : attached()) {
      std::string text = cat(each.pid, ":");
      for (const AttachedDevice& device : each.devices) text += cat(" ", device.id);
      texts.push_back(text);
    }
    return texts;
  }
  static std::unique_ptr<Attachment> attach(Request request) {
    return std::make_unique<Attachment>(std::move(request));
  }
  static std::vector<std::string> list(std::initializer_list<std::string> texts) { return texts; }

  fs::path base_;
};

TEST_F(Registry, ShowsModelsOfThisProcessAndOfOthers) {
  EXPECT_EQ(attachedTexts(), list({}));
  const auto own_model = attach({.num_devices = 2, .is_training = true, .model = "own", .targets = {"cpu", "cuda:0"}});
  Program other([&] { return attach({.num_devices = 1, .model = "other"}); });
  EXPECT_EQ(attachedTexts(), list({cat(::getpid(), ": 0 1"), cat(other.pid(), ": 2")}));
  const std::vector<Attached> all = attached();
  EXPECT_EQ(all[0].model, "own");
  EXPECT_TRUE(all[0].is_training);
  EXPECT_EQ(all[0].devices[1].target, "cuda:0");
  EXPECT_EQ(all[1].model, "other");
  EXPECT_FALSE(all[1].is_training);
  EXPECT_EQ(all[1].user_id, static_cast<int64_t>(::geteuid()));
  EXPECT_TRUE(all[1].command.starts_with("unit")) << all[1].command;
}

TEST_F(Registry, CountersAreSeenByOthers) {
  auto model = attach({.num_devices = 2});
  model->beginStep();
  model->endStep(std::vector<int64_t>{3, 4}, true);
  model->endStep(std::vector<int64_t>{}, false);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<Attached> all = attached();
    ::_exit(all.size() == 1 && all[0].steps == 1 && all[0].devices[1].busy_ns == 4 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(attached()[0].devices[0].busy_ns, 3);
}

TEST_F(Registry, NothingOfAProcessIsLeftHoweverItEnds) {
  for (const int signal : {SIGTERM, SIGKILL, SIGSEGV}) {
    Program other([&] { return attach({.num_devices = 4}); });
    EXPECT_EQ(attachedTexts(), list({cat(other.pid(), ": 0 1 2 3")}));
    other.end(signal);
    EXPECT_EQ(attachedTexts(), list({})) << signal;
  }
  EXPECT_EQ(numRecords(), 1u) << "a file without an owner, until the next program of the user";
  Program next([&] { return attach({}); });
  EXPECT_EQ(numRecords(), 1u);
}

TEST_F(Registry, ADetachedModelIsGone) {
  auto model = attach({.num_devices = 2});
  EXPECT_EQ(numRecords(), 1u);
  model.reset();
  EXPECT_EQ(numRecords(), 0u);
  EXPECT_EQ(attachedTexts(), list({}));
}

TEST_F(Registry, AForkedChildHasNoDevicesAndKeepsNone) {
  int life[2];  // the child lives until the test closes its end
  ASSERT_EQ(::pipe(life), 0);
  Program parent([&] {
    auto model = attach({});
    ::close(life[1]);
    // After its parent is killed, the child lives for a while with all files that the parent had open.
    if (::fork() == 0) {
      const bool sees = attachedTexts() == list({cat(::getppid(), ": 0")});
      model->endStep(std::vector<int64_t>{1}, true);  // nothing
      model.reset();                                  // nothing of the parent's
      std::ofstream(base_ / (sees ? "saw" : "saw not")) << "";
      char c;
      while (::read(life[0], &c, 1) < 0) {
      }
      ::_exit(0);
    }
    while (!fs::exists(base_ / "saw") && !fs::exists(base_ / "saw not")) ::usleep(100);
    return model;
  });
  EXPECT_TRUE(fs::exists(base_ / "saw"));
  ASSERT_EQ(attachedTexts(), list({cat(parent.pid(), ": 0")}));
  EXPECT_EQ(attached()[0].steps, 0);
  parent.end(SIGKILL);
  EXPECT_EQ(attachedTexts(), list({}));
  ::close(life[0]);
  ::close(life[1]);
}

TEST_F(Registry, ModelsGetFreeDevicesFirst) {
  Program first([&] { return attach({.num_devices = 1}); });
  Program second([&] { return attach({.num_devices = 2, .in_groups = true}); });
  Program third([&] { return attach({.num_devices = 1}); });
  EXPECT_EQ(attachedTexts(), list({cat(first.pid(), ": 0"), cat(third.pid(), ": 1"), cat(second.pid(), ": 2 3")}));
  // All devices are in use, so they are shared.
  Program fourth([&] { return attach({.num_devices = 4, .in_groups = true}); });
  Program fifth([&] { return attach({.num_devices = 6}); });
  EXPECT_EQ(attached().size(), 5u);
  first.end(SIGKILL);
  third.end(SIGKILL);
  fourth.end(SIGKILL);
  fifth.end(SIGKILL);
  EXPECT_EQ(attach({.num_devices = 2})->attached().devices[0].id, 0);
  EXPECT_EQ(attach({.num_devices = 1, .group = 3})->attached().devices[0].id, 3);
}

TEST_F(Registry, ExclusiveDevicesAreNobodyElses) {
  Program shared([&] { return attach({.num_devices = 2}); });
  ::setenv("ABELE_EXCLUSIVE_DEVICES", "1", 1);
  auto own_model = attach({.num_devices = 2});
  EXPECT_EQ(own_model->attached().devices[0].id, 2);
  EXPECT_TRUE(attached()[1].is_exclusive);
  // Devices of this process's own models do not count.
  EXPECT_EQ(attach({.num_devices = 2})->attached().devices[0].id, 2);
  EXPECT_EQ(codeOf([&] { attach({.num_devices = 4, .in_groups = true}); }), "E0402");
  try {
    attach({.num_devices = 1, .group = 1});
    FAIL();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(cat("(process ", shared.pid(), ") has devices 0 to 1")), std::string::npos) << text;
    EXPECT_NE(text.find("POPTORCH_WAIT_FOR_IPU=1"), std::string::npos) << text;
  }
  shared.end(SIGKILL);
  EXPECT_EQ(attach({.num_devices = 4, .in_groups = true})->attached().devices[0].id, 0);
}

TEST_F(Registry, WaitsForDevicesUntilTheyAreFree) {
  auto shared = std::make_unique<Program>([&] { return attach({.num_devices = 4}); });
  ::setenv("ABELE_EXCLUSIVE_DEVICES", "1", 1);
  ::setenv("POPTORCH_WAIT_FOR_IPU", "1", 1);
  EXPECT_EQ(codeOf([&] { Attachment({.num_devices = 2}, [] { return true; }); }), "E0602");
  EXPECT_EQ(codeOf([&] { Attachment({.num_devices = 8, .in_groups = true}, [] { return false; }); }), "E0402")
      << "no devices of this machine will ever do";
  int looks = 0;
  const Attachment waited({.num_devices = 2}, [&] {
    if (++looks == 2) shared.reset();
    return false;
  });
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(waited.attached().devices[0].id, 0);
}

TEST_F(Registry, WithoutAFolderProgramsRun) {
  if (::geteuid() != 0) fs::permissions(base_, fs::perms::owner_read | fs::perms::owner_exec);
  const std::string bases[] = {(base_ / "absent").string(), base_.string(), "off", "/proc"};
  for (const std::string& base : bases) {
    if (base == base_.string() && ::geteuid() == 0) continue;
    ::setenv("ABELE_REGISTRY", base.c_str(), 1);
    const auto model = attach({.num_devices = 2});
    model->beginStep();
    model->endStep(std::vector<int64_t>{1, 2}, true);
    EXPECT_EQ(model->attached().steps, 1) << base;
    EXPECT_EQ(attachedTexts(), list({cat(::getpid(), ": 0 1")})) << base;
    ::setenv("ABELE_EXCLUSIVE_DEVICES", "1", 1);
    EXPECT_EQ(codeOf([&] { attach({}); }), "E0402") << base;
    ::unsetenv("ABELE_EXCLUSIVE_DEVICES");
  }
}

TEST_F(Registry, TrustsNoFolderThatOthersWriteTo) {
  fs::create_directory(own());
  fs::permissions(own(), fs::perms::all);
  const auto model = attach({});
  EXPECT_EQ(numRecords(), 0u);
  fs::remove_all(own());
  fs::create_directory(base_ / "elsewhere");
  fs::create_directory_symlink(base_ / "elsewhere", own());
  const auto next = attach({});
  EXPECT_TRUE(fs::is_empty(base_ / "elsewhere"));
}

TEST_F(Registry, PassesOverWhatIsNoRecord) {
  Program other([&] { return attach({}); });
  std::ofstream(own() / "readme") << "text";
  std::ofstream(own() / "4711-0") << "text";
  std::ofstream(own() / "4712-0") << std::string(300, '\0');
  std::ofstream(own() / "4713-0");
  fs::resize_file(own() / "4713-0", uint64_t{1} << 40);
  fs::create_directory(own() / "4714-0");
  fs::create_symlink("/dev/zero", own() / "4715-0");
  ASSERT_EQ(::mkfifo((own() / "4716-0").c_str(), 0600), 0);
  std::ofstream(own() / "-1-0") << "text";
  std::ofstream(own() / "99999999999999999999-0") << "text";
  EXPECT_EQ(attachedTexts(), list({cat(other.pid(), ": 0")}));
  Program next([&] { return attach({}); });  // removes only the files of dead processes
  EXPECT_FALSE(fs::exists(own() / "4712-0"));
  EXPECT_TRUE(fs::exists(own() / "readme") && fs::exists(own() / "4714-0") && fs::exists(own() / "4716-0"));
  EXPECT_EQ(attached().size(), 2u);
}

TEST_F(Registry, ARecordThatItsProgramDamagesIsNotShown) {
  Program other([&] { return attach({}); });
  for (const auto& entry : fs::directory_iterator(own()))
    if (entry.path().filename() != "choosing") fs::resize_file(entry.path(), 10);
  EXPECT_EQ(attachedTexts(), list({}));
}

}  // namespace
}  // namespace abele::registry
