#include "runtime/runtime.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "device/null/null_backend.h"
#include "exe/build/build.h"
#include "ir/text.h"

namespace abele::runtime {
namespace {

exe::Executable makeExecutable(int num_stages, int64_t accumulation) {
  std::string text = "graph @main {training} {\n";
  for (int s = 0; s < num_stages; ++s) text += cat("  stage ", s, " \"s", s, "\" {device=", s, "}\n");
  text += "  input %0 \"x\": f32[4] = argument(0)\n";
  for (int s = 0; s < num_stages; ++s) text += cat("  %", s + 1, ": f32[4] = aten.f(%", s, ") {stage=", s, "}\n");
  for (int s = num_stages; s-- > 0;)
    text += cat("  %", 2 * num_stages - s, ": f32[4] = aten.g(%", 2 * num_stages - s - 1, ", %", s + 1,
                ") {dir=bwd, stage=", s, "}\n");
  text += cat("  output loss %", num_stages, "\n  output result(0) %", num_stages, "\n}\n");
  const ir::Graph graph = ir::parse(text);
  return exe::build(graph,
                    plan::makePlan(graph, {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = accumulation}));
}

std::string errorOf(Runtime& runtime, ErrorCode code, const std::function<bool()>& poll = {}) {
  try {
    runtime.run(poll);
  } catch (const Error& error) {
    EXPECT_EQ(errorCodeText(error.code()), std::string(errorCodeText(code)));
    return error.what();
  }
  return "no error";
}

void expectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

// Runs with a thread for every worker, and with the caller's thread in place of worker 0's.
class Runtimes : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Caller, Runtimes, testing::Bool(),
                         [](const auto& info) { return info.param ? "Works" : "Waits"; });

TEST_P(Runtimes, RunsEveryActionOnceInWorkerOrder) {
  const exe::Executable executable = makeExecutable(3, 5);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  for (int step = 0; step < 3; ++step) {
    const StepReport& report = runtime.run();
    size_t i = 0;
    for (size_t w = 0; w < executable.workers.size(); ++w)
      for (const exe::Action& action : executable.workers[w].actions) {
        const ActionTime& time = report.actions.at(i++);
        EXPECT_EQ(time.worker, static_cast<int>(w));
        EXPECT_EQ(time.segment, action.segment);
        EXPECT_EQ(time.micro_batch, action.micro_batch);
        EXPECT_LE(time.begin_ns, time.end_ns);
        EXPECT_LE(time.end_ns, report.wall_ns);
      }
    EXPECT_EQ(report.actions.size(), i);
    EXPECT_EQ(backend.events().size(), i * (step + 1));
  }
}

TEST_P(Runtimes, KeepsForwardBeforeBackwardAcrossWorkers) {
  const exe::Executable executable = makeExecutable(4, 7);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  runtime.run();
  std::map<std::pair<int, int>, int> first;  // (segment, micro-batch) -> position
  int position = 0;
  for (const device::NullBackend::Event& e : backend.events()) first[{e.segment, e.micro_batch}] = position++;
  for (int k = 0; k < 7; ++k) {
    std::map<std::string, int> at;
    for (size_t s = 0; s < executable.segments.size(); ++s)
      at[executable.segments[s].name] = first[{static_cast<int>(s), k}];
    EXPECT_LT(at["fwd/0"], at["fwd/1"]);
    EXPECT_LT(at["fwd/2"], at["fwd/3"]);
    EXPECT_LT(at["fwd/3"], at["bwd/3"]);
    EXPECT_LT(at["bwd/1"], at["bwd/0"]);
  }
}

TEST_P(Runtimes, RethrowsOurErrorsWithTheirPlaceAndRunsAgain) {
  const exe::Executable executable = makeExecutable(3, 4);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  backend.setHook([&](const ActionContext& c) {
    if (executable.segments[c.segment].name == "bwd/1" && c.micro_batch == 2)
      throwDevice(ErrorCode::E0603, {.what = "device 1 is full"}, "IPU_RESET");
  });
  try {
    runtime.run();
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0603);
    EXPECT_EQ(error.recoveryAction(), "IPU_RESET");
    expectContains(error.what(), "bwd/1 (backward of stage 1), micro-batch 2, on worker 1");
  }
  backend.setHook({});
  EXPECT_EQ(runtime.run().actions.size(), 24u);
}

TEST_P(Runtimes, WrapsForeignExceptions) {
  const exe::Executable executable = makeExecutable(2, 2);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  backend.setHook([](const ActionContext& c) {
    if (c.micro_batch == 1) throw std::out_of_range("index 7 of 3");
  });
  const std::string text = errorOf(runtime, ErrorCode::E0601);
  expectContains(text, "index 7 of 3");
  expectContains(text, "std::out_of_range");
  expectContains(text, "micro-batch 1");
  backend.setHook([](const ActionContext&) { throw 42; });
  expectContains(errorOf(runtime, ErrorCode::E0601), "int");
  backend.setHook({});
  runtime.run();
}

// A worker that hangs in a kernel until the test releases it.
class Blockade {
 public:
  void block(const ActionContext&) {
    if (!entered_.exchange(true)) reached_.set_value();
    released_.wait();
  }
  void waitUntilReached() { reached_.get_future().wait(); }
  void release() { release_.set_value(); }

 private:
  std::atomic<bool> entered_ = false;
  std::promise<void> reached_, release_;
  std::shared_future<void> released_ = release_.get_future().share();
};

TEST_P(Runtimes, PollInterruptsWhileAWorkerIsBusy) {
  const exe::Executable executable = makeExecutable(3, 3);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  Blockade blockade;
  backend.setHook([&](const ActionContext& c) {
    if (executable.segments[c.segment].name == "fwd/1" && c.micro_batch == 1) blockade.block(c);
  });
  bool released = false;
  const std::string text = errorOf(runtime, ErrorCode::E0602, [&] {
    if (!std::exchange(released, true)) blockade.release();
    return true;
  });
  expectContains(text, "interrupted");
  backend.setHook({});
  runtime.run();
}

TEST(Runtime, RethrowsWhatPollThrows) {
  const exe::Executable executable = makeExecutable(2, 1);
  device::NullBackend backend(executable);
  Runtime runtime(executable, backend);
  Blockade blockade;
  backend.setHook([&](const ActionContext& c) { blockade.block(c); });
  bool released = false;
  EXPECT_THROW(runtime.run([&]() -> bool {
    if (!std::exchange(released, true)) blockade.release();
    throw std::domain_error("ctrl-c");
  }),
               std::domain_error);
  backend.setHook({});
  runtime.run();
}

TEST(Runtime, TheCallerDoesTheWorkOfWorkerZero) {
  const exe::Executable executable = makeExecutable(2, 2);
  device::NullBackend backend(executable);
  backend.letCallerWork(true);
  Runtime runtime(executable, backend);
  std::map<int, std::thread::id> thread_of;
  std::mutex mutex;
  backend.setHook([&](const ActionContext& c) {
    const std::lock_guard lock(mutex);
    thread_of[c.worker] = std::this_thread::get_id();
  });
  runtime.run();
  EXPECT_EQ(thread_of[0], std::this_thread::get_id());
  EXPECT_NE(thread_of[1], std::this_thread::get_id());
  backend.letCallerWork(false);
  runtime.run();
  EXPECT_NE(thread_of[0], std::this_thread::get_id());
}

TEST_P(Runtimes, AbortWakesSleepingWorkersAndDoesNothingBetweenSteps) {
  const exe::Executable executable = makeExecutable(3, 3);
  device::NullBackend backend(executable);
  backend.letCallerWork(GetParam());
  Runtime runtime(executable, backend);
  runtime.abort();
  runtime.run();
  Blockade blockade;
  backend.setHook([&](const ActionContext& c) {
    if (executable.segments[c.segment].name == "fwd/0" && c.micro_batch == 0) blockade.block(c);
  });
  std::future<std::string> text = std::async(std::launch::async, [&] { return errorOf(runtime, ErrorCode::E0602); });
  blockade.waitUntilReached();
  runtime.abort();
  blockade.release();
  expectContains(text.get(), "interrupted");
  backend.setHook({});
  runtime.run();
}

class FailingAttach : public device::NullBackend {
 public:
  using NullBackend::NullBackend;
  std::unique_ptr<Device> makeDevice(int32_t) override {
    class Broken : public Device {
      void attach() override { throwDevice(ErrorCode::E0603, {.what = "no memory for the arena"}); }
      void run(const ActionContext&) override {}
    };
    return std::make_unique<Broken>();
  }
};

TEST(Runtime, ReportsADeviceThatCannotStart) {
  const exe::Executable executable = makeExecutable(2, 1);
  FailingAttach backend(executable);
  EXPECT_THROW(Runtime(executable, backend), DeviceError);
}

TEST(Runtime, ProgramsShareTheThreadsOfTheProcess) {
  const exe::Executable executable = makeExecutable(3, 2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::list<device::NullBackend> backends;
  std::list<Runtime> runtimes;
  for (int i = 0; i < 20; ++i) {
    backends.emplace_back(executable).setHook([&](const ActionContext&) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    runtimes.emplace_back(executable, backends.back());
  }
  for (Runtime& runtime : runtimes) runtime.run();
  EXPECT_EQ(threads.size(), 3u);
}

TEST(Runtime, StepsAtTheSameTimeDoNotWaitForEachOther) {
  const exe::Executable executable = makeExecutable(2, 1);
  device::NullBackend blocked(executable), free(executable);
  Blockade blockade;
  blocked.setHook([&](const ActionContext& c) {
    if (executable.segments[c.segment].name == "fwd/1") blockade.block(c);
  });
  Runtime first(executable, blocked), second(executable, free);
  std::future<void> step = std::async(std::launch::async, [&] { first.run(); });
  blockade.waitUntilReached();
  second.run();
  blockade.release();
  step.get();
}

// Counts by worker how often threads were prepared for it, and how often it was left.
struct Moves : device::NullBackend {
  using NullBackend::NullBackend;
  std::unique_ptr<Device> makeDevice(int32_t worker) override {
    struct Counting : Device {
      Counting(Moves& all, int32_t number, std::unique_ptr<Device> device)
          : moves(all), worker(number), inner(std::move(device)) {}
      void attach() override { ++moves.in[worker]; }
      void detach() override { ++moves.out[worker]; }
      void run(const ActionContext& context) override { inner->run(context); }
      Moves& moves;
      int32_t worker;
      std::unique_ptr<Device> inner;
    };
    return std::make_unique<Counting>(*this, worker, NullBackend::makeDevice(worker));
  }
  std::array<std::atomic<int>, 2> in = {}, out = {};
};

TEST(Runtime, PreparesAThreadThatComesFromAnotherProgram) {
  const exe::Executable executable = makeExecutable(2, 1);
  Moves one(executable), two(executable);
  {
    Runtime first(executable, one);
    first.run();
    first.run();
    EXPECT_EQ(one.in[1], 1);
    Runtime second(executable, two);
    second.run();
    EXPECT_EQ(two.in[1], 1);
    first.run();
    EXPECT_EQ(one.in[1], 2);
  }
  EXPECT_EQ(one.out[1], 1);
  EXPECT_EQ(two.out[1], 0);
}

TEST(Runtime, PreparesAThreadAgainAfterItFailed) {
  struct FailsOnce : Moves {
    using Moves::Moves;
    std::unique_ptr<Device> makeDevice(int32_t worker) override {
      struct Failing : Device {
        Failing(FailsOnce& all, std::unique_ptr<Device> device) : owner(all), inner(std::move(device)) {}
        void attach() override {
          if (owner.fails.exchange(false)) throwDevice(ErrorCode::E0603, {.what = "no memory for the arena"});
          inner->attach();
        }
        void run(const ActionContext& context) override { inner->run(context); }
        FailsOnce& owner;
        std::unique_ptr<Device> inner;
      };
      return std::make_unique<Failing>(*this, Moves::makeDevice(worker));
    }
    std::atomic<bool> fails = false;
  };
  const exe::Executable executable = makeExecutable(2, 1);
  FailsOnce one(executable);
  Moves two(executable);
  Runtime first(executable, one), second(executable, two);  // the threads are prepared for the second
  one.fails = true;
  errorOf(first, ErrorCode::E0603);
  first.run();
  EXPECT_EQ(one.in[0] + one.in[1], 4);  // twice for each worker
}

TEST(Runtime, TheThreadsEndWithTheLastProgram) {
  static std::atomic<int> ended = 0;
  struct Ends {
    ~Ends() { ++ended; }
  };
  const exe::Executable executable = makeExecutable(2, 1);
  device::NullBackend backend(executable);
  backend.setHook([](const ActionContext&) { thread_local const Ends ends; });
  {
    Runtime first(executable, backend);
    first.run();
    Runtime(executable, backend).run();
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(ended, 2);
}

TEST(Runtime, FinishTellsTheBackendHowItWent) {
  struct Recorder : device::NullBackend {
    using NullBackend::NullBackend;
    void begin(int64_t step) override { calls += cat("begin ", step, "; "); }
    void finish(bool completed) override { calls += cat("finish ", completed, "; "); }
    std::string calls;
  };
  const exe::Executable executable = makeExecutable(1, 1);
  Recorder backend(executable);
  Runtime runtime(executable, backend);
  runtime.run();
  backend.setHook([](const ActionContext&) { throw std::runtime_error("x"); });
  errorOf(runtime, ErrorCode::E0601);
  backend.setHook({});
  runtime.run();
  EXPECT_EQ(backend.calls, "begin 0; finish true; begin 1; finish false; begin 1; finish true; ");
}

// Two stages, each in a process of its own, and their updates.
exe::Executable makeApart() {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0, space=0}
  stage 1 "s1" {device=1, space=1}
  external 0 parameter "w": f32[4]
  external 1 parameter "v": f32[4]
  input %0 "x": f32[4] = argument(0)
  input %1 "w": f32[4] = parameter(0)
  input %2 "v": f32[4] = parameter(1)
  %3: f32[4] = aten.mul(%0, %1) {stage=0}
  %4: f32[4] = abele.transfer(none, %3) {stage=1}
  %5: f32[4] = aten.mul(%4, %2) {stage=1}
  %6: f32[4] = aten.g(%5) {dir=bwd, stage=1}
  %7: f32[4] = abele.transfer(none, %6) {dir=bwd, stage=0}
  %8: f32[4] = aten.g(%7) {dir=bwd, stage=0}
  _ = aten.add_(%1, 1) writes(0: %1 -> %9: f32[4]) {dir=update, stage=0}
  _ = aten.add_(%2, 1) writes(0: %2 -> %10: f32[4]) {dir=update, stage=1}
  output loss %5
  output update(0) %9
  output update(1) %10
}
)");
  exe::Replication replication{.input_part = {0}};
  replication.devices_per_process = 1;
  return exe::build(graph, plan::makePlan(graph, {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = 3}),
                    replication);
}

// One of several processes that hold the stages. It agrees with the others after all work except its last updates.
struct Agreeing : device::NullBackend {
  using NullBackend::NullBackend;
  void agree() override {
    agreed_behind = events().size();
    ++asked;
    if (refuses) throwUser(ErrorCode::E0713, {.what = "another process is elsewhere"});
  }
  size_t agreed_behind = 0;
  int asked = 0;
  bool refuses = false;
};

TEST(Runtime, ProcessesAgreeBeforeTheirUpdates) {
  const exe::Executable executable = makeApart();
  ASSERT_EQ(executable.stage_processes, 2);
  for (int64_t process = 0; process < 2; ++process) {
    Agreeing backend(executable);
    Runtime runtime(executable, backend, process);
    const auto isUpdate = [&](const device::NullBackend::Event& e) {
      return executable.segments[e.segment].direction == exe::Direction::kUpdate;
    };
    for (int step = 1; step <= 2; ++step) {
      const size_t before = backend.events().size();
      runtime.run();
      EXPECT_EQ(backend.asked, step);
      const auto events = backend.events();
      for (size_t i = before; i < events.size(); ++i) EXPECT_EQ(isUpdate(events[i]), i >= backend.agreed_behind) << i;
      EXPECT_LT(backend.agreed_behind, events.size());
    }
    backend.refuses = true;
    const size_t before = backend.events().size();
    expectContains(errorOf(runtime, ErrorCode::E0713), "another process is elsewhere");
    const auto events = backend.events();
    EXPECT_GT(events.size(), before);
    for (size_t i = before; i < events.size(); ++i) EXPECT_FALSE(isUpdate(events[i])) << i;
    backend.refuses = false;
    runtime.run();
  }
}

// A failing step does not change persistent memory, and the next step gives the result that it would have given.
TEST(NullBackend, PutsBackPersistentMemory) {
  const ir::Graph graph = ir::parse(R"(
graph @main {
  stage 0 "s0" {device=0}
  external 0 buffer "mean": f32[4]
  input %0 "mean": f32[4] = buffer(0)
  _ = aten.mul_(%0) writes(0: %0 -> %1: f32[4]) {stage=0}
  output update(0) %1
}
)");
  const exe::Executable executable =
      exe::build(graph, plan::makePlan(graph, {.schedule = schedule::ScheduleKind::kForward, .device_iterations = 2}));
  device::NullBackend backend(executable);
  backend.enableContents();
  Runtime runtime(executable, backend);
  const device::Bytes before = backend.external(0);
  backend.setHook([](const ActionContext& c) {
    if (c.micro_batch == 1) throw std::runtime_error("x");
  });
  errorOf(runtime, ErrorCode::E0601);
  EXPECT_EQ(backend.external(0), before);
  backend.setHook({});
  runtime.run();
  EXPECT_NE(backend.external(0), before);
}

}  // namespace
}  // namespace abele::runtime
