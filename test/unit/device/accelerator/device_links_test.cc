// Messages from accelerator to accelerator, by a backend of torch.distributed that orders them by calls alone. Its
// streams stop until the other process calls, too.
#include <map>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "collective/device_links.h"
#include "exe/links.h"
#include "processes.h"
#include "simulated_accelerator/links.h"

namespace abele::device::testing {
namespace {

constexpr c10::DeviceType kSimulated = c10::DeviceType::PrivateUse1;

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

/// Replaces torch.distributed's new_group of a program.
class Groups {
 public:
  collective::DeviceGroup make(int64_t process, const std::string& kind, int64_t first, int64_t second) {
    const std::lock_guard lock(mutex_);
    if (kind != "simulated" || without_ == process) return {.name = {}, .why_not = "no backend of " + kind};
    const int64_t number = calls_[process]++;
    if (process != first && process != second) return {};
    const std::string common = std::to_string(made_) + "." + std::to_string(number);
    const std::string own = "device groups " + common + "/" + std::to_string(process);
    const int rank = process == first ? 0 : 1;
    const auto store = c10::make_intrusive<c10d::PrefixStore>(common, store_);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, 2);
    group->setBackend(kSimulated, c10d::ProcessGroup::BackendType::CUSTOM, simulated::makeLinks(store, rank, 2));
    c10d::register_process_group(own, group);
    groups_.push_back(group);
    return {.name = own, .why_not = {}};
  }
  void leaveOut(int64_t process) { without_ = process; }
  size_t count() const { return groups_.size(); }

 private:
  static inline int64_t next_ = 0;
  const int64_t made_ = next_++;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  std::map<int64_t, int64_t> calls_;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;
  int64_t without_ = -1;
};

struct DeviceLinksOfProcesses : Processes {
  void SetUp() override {
    Processes::SetUp();
    collective::setDeviceGroups([this](int64_t process, const std::string& kind, int64_t first, int64_t second) {
      return groups.make(process, kind, first, second);
    });
  }
  void TearDown() override {
    collective::setDeviceGroups({});
    Processes::TearDown();
  }

  /// The link of twoStages(), as this process sees it.
  static std::vector<collective::DeviceLink> linkFrom(c10::Device own) {
    return {{.link = kLink, .from = 0, .to = 1, .own = own}};
  }
  static inline const int64_t kLink = exe::linkOffset(twoStages(1).executable);
  static c10::Device simulatedDevice(int index) { return {kSimulated, static_cast<c10::DeviceIndex>(index)}; }
  static void connect(const std::vector<std::shared_ptr<collective::Peers>>& peers, c10::Device source,
                      c10::Device target) {
    forEachProcess(
        2, [&](int p) { peers[static_cast<size_t>(p)]->connectDevices(linkFrom(p == 0 ? source : target), 2); });
  }

  static constexpr int64_t kSteps = 3;

  /// The error of a process that runs a step of twoStages() alone. meanwhile: called when a device waits for the other.
  static std::string errorOfLoneStep(const std::shared_ptr<collective::Peers>& peers, int process,
                                     const std::function<void(runtime::Runtime&)>& meanwhile) {
    const Program p = twoStages(2);
    const int64_t before = simulated::numMessages();
    const auto backend =
        makeBackend("accelerator", p.executable,
                    {.stage_process = process, .peers = peers, .accelerator = "simulated:0,simulated:1"});
    runtime::Runtime runtime(p.executable, *backend, process);
    backend->bindInputs({at::randn({8, 4})});
    backend->bindOutputs({{at::empty({4, 4}), at::empty({4, 4})}});
    std::thread other([&] {
      while (simulated::numMessages() == before) std::this_thread::yield();
      meanwhile(runtime);
    });
    std::string code = "none";
    try {
      runtime.run();
    } catch (const Error& error) {
      code = errorCodeText(error.code());
    }
    other.join();
    return code;
  }

  Groups groups;
  const Variable by_device{"ABELE_HANDOVER", "device"};
};

TEST_F(DeviceLinksOfProcesses, StagesHandOverWithTheBitsOfTheHostsTransport) {
  // Small values share a message. A large one goes from its own memory to its own memory.
  for (const int64_t size : {int64_t{4}, int64_t{136}}) {
    const Program p = twoStages(kMicroBatches, size);
    const auto peers = join(2);
    for (const auto& [source, target] : {std::pair{0, 1}, {2, 2}}) {
      connect(peers, simulatedDevice(source), simulatedDevice(target));
      EXPECT_TRUE(peers[0]->takesDevice(kLink, 1, simulatedDevice(source)));
      EXPECT_TRUE(peers[1]->takesDevice(kLink, 0, simulatedDevice(target)));
      const int64_t before = simulated::numMessages();
      runSteps(p, peers, size, kSteps, "simulated:" + std::to_string(source) + ",simulated:" + std::to_string(target));
      // Each was sent and received. The large one is alone.
      EXPECT_EQ(simulated::numMessages() - before, 2 * kSteps * kMicroBatches * (size > 128 ? 2 : 1));
    }
  }
}

// They are in the host's memory, at one end or both.
TEST_F(DeviceLinksOfProcesses, ValuesOffChipGoFromDeviceToDeviceToo) {
  for (const auto& [there, here] : {std::pair{true, false}, {false, true}, {true, true}}) {
    Program p = twoStages(kMicroBatches, 136);
    p.executable.groups[p.values].off_chip = there;
    p.executable.groups[p.executable.slots[p.executable.segments[2].instructions[0].writes[0]].group].off_chip = here;
    const auto peers = join(2);
    connect(peers, simulatedDevice(0), simulatedDevice(1));
    const int64_t before = simulated::numMessages();
    runSteps(p, peers, 136, kSteps, "simulated:0,simulated:1");
    EXPECT_EQ(simulated::numMessages() - before, 2 * kSteps * kMicroBatches * 2);
  }
}

TEST_F(DeviceLinksOfProcesses, ProgramsShareCommunicatorsBetweenTheSameDevices) {
  const auto peers = join(2);
  connect(peers, simulatedDevice(0), simulatedDevice(1));
  EXPECT_EQ(groups.count(), 2U);  // one in each process
  connect(peers, simulatedDevice(0), simulatedDevice(1));
  EXPECT_EQ(groups.count(), 2U);
  connect(peers, simulatedDevice(2), simulatedDevice(3));
  EXPECT_EQ(groups.count(), 4U);
  // A link from the first device leads to the second one already.
  std::string codes[2];
  forEachProcess(2, [&](int p) {
    try {
      peers[static_cast<size_t>(p)]->connectDevices(linkFrom(simulatedDevice(p == 0 ? 0 : 3)), 2);
    } catch (const Error& error) {
      codes[p] = errorCodeText(error.code());
    }
  });
  EXPECT_EQ(codes[0], "E0714");
  EXPECT_EQ(codes[1], "E0714");
}

TEST_F(DeviceLinksOfProcesses, AnEndOnTheHostKeepsTheHostsTransport) {
  const auto peers = join(2);
  connect(peers, simulatedDevice(0), c10::Device(c10::DeviceType::CPU));
  EXPECT_FALSE(peers[0]->takesDevice(kLink, 1, simulatedDevice(0)));
  EXPECT_EQ(groups.count(), 0U);
  const Program p = twoStages(2);
  const at::Tensor x = at::randn({8, 4});
  forEachProcess(2, [&](int process) {
    const auto backend = makeBackend(
        "accelerator", p.executable,
        {.stage_process = process, .peers = peers[static_cast<size_t>(process)], .accelerator = "simulated:0,cpu"});
    runtime::Runtime runtime(p.executable, *backend, process);
    std::vector<at::Tensor> results{at::empty({4, 4}), at::empty({4, 4})};
    backend->bindInputs({x});
    backend->bindOutputs({results});
    runtime.run();
    const at::Tensor part = x.narrow(0, 4, 4), product = at::mm(part, part);
    EXPECT_TRUE(sameBits(results[1], product + product.sum(1, /*keepdim=*/true)));
  });
}

TEST_F(DeviceLinksOfProcesses, AProcessWithoutABackendIsAnErrorInAll) {
  const auto peers = join(2);
  groups.leaveOut(1);
  std::string texts[2];
  forEachProcess(2, [&](int p) {
    try {
      peers[static_cast<size_t>(p)]->connectDevices(linkFrom(simulatedDevice(p)), 2);
    } catch (const Error& error) {
      texts[p] = error.what();
    }
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("E0714"), std::string::npos) << text;
    EXPECT_NE(text.find("process 1 cannot reach the accelerators of other processes"), std::string::npos) << text;
    EXPECT_NE(text.find("init_process_group"), std::string::npos) << text;
  }
}

TEST_F(DeviceLinksOfProcesses, DevicesThatNobodyWakesAreRefused) {
  const Variable silent("ABELE_PEER_SILENCE", "0");
  const auto peers = join(2);
  try {
    peers[0]->connectDevices(linkFrom(simulatedDevice(0)), 2);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0702);
  }
}

// A wait for the stream does not report the failure. The backend does, because it is aborted.
TEST_F(DeviceLinksOfProcesses, AProcessThatFailsIsAnErrorInTheOther) {
  for (const int alone : {0, 1}) {
    const auto peers = join(2);
    connect(peers, simulatedDevice(0), simulatedDevice(1));
    collective::Peers& other = *peers[static_cast<size_t>(1 - alone)];
    const std::string code = errorOfLoneStep(peers[static_cast<size_t>(alone)], alone,
                                             [&](runtime::Runtime&) { other.fail("it has had enough"); });
    EXPECT_EQ(code, "E0606") << "process " << alone;
  }
}

TEST_F(DeviceLinksOfProcesses, AStepThatWaitsForOthersCanBeInterrupted) {
  for (const int alone : {0, 1}) {
    const auto peers = join(2);
    connect(peers, simulatedDevice(0), simulatedDevice(1));
    const std::string code = errorOfLoneStep(peers[static_cast<size_t>(alone)], alone, &runtime::Runtime::abort);
    EXPECT_EQ(code, "E0602") << "process " << alone;
  }
}

}  // namespace
}  // namespace abele::device::testing
