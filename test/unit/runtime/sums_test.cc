// Sums over processes run beside backward. The tests check the order of waits, not the time.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "base/error.h"
#include "exe/build/build.h"
#include "ir/text.h"
#include "runtime/runtime.h"

namespace abele::runtime {
namespace {

// Two stages with a weight each, of 1 MiB, in one of two processes.
exe::Executable makeSums(int64_t accumulation) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 parameter "v": f32[262144] {trainable}
  external 1 parameter "w": f32[262144] {trainable}
  external 2 accumulator "grad/v": f32[262144] {owner=0}
  external 3 accumulator "grad/w": f32[262144] {owner=1}
  input %0 "x": f32[262144] = argument(0)
  input %1 "v": f32[262144] = parameter(0)
  input %2 "w": f32[262144] = parameter(1)
  input %3 "grad/v": f32[262144] = accumulator(2)
  input %4 "grad/w": f32[262144] = accumulator(3)
  %5: f32[262144] = aten.a(%0, %1) {stage=0}
  %6: f32[] = aten.loss(%5, %2) {stage=1}
  %7: f32[262144] = aten.g(%6, %5) {dir=bwd, stage=1}
  _ = abele.accumulate(%4, %7) writes(0: %4 -> %8: f32[262144]) {dir=bwd, stage=1}
  %9: f32[262144] = aten.h(%7, %0) {dir=bwd, stage=0}
  _ = abele.accumulate(%3, %9) writes(0: %3 -> %10: f32[262144]) {dir=bwd, stage=0}
  _ = abele.sgd_(%1, %10, none, 0) writes(0: %1 -> %11: f32[262144]) {dir=update, stage=0}
  _ = abele.sgd_(%2, %8, none, 0) writes(0: %2 -> %12: f32[262144]) {dir=update, stage=1}
  output loss %6
  output result(0) %6
  output update(0) %11
  output update(1) %12
  output update(2) %10
  output update(3) %8
}
)");
  return exe::build(graph,
                    plan::makePlan(graph, {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = accumulation}),
                    {.processes = 2, .input_part = {0}});
}

// Runs nothing. An action may be held until others have run, and may fail.
class HoldingBackend final : public Backend {
 public:
  explicit HoldingBackend(const exe::Executable& executable) : executable_(executable) {}

  std::string held, until;  // names of segments; `held` in its last micro-batch
  std::string failing;
  bool was_met = false;
  std::set<std::string> ran;

  std::unique_ptr<Device> makeDevice(int32_t /*worker*/) override { return std::make_unique<Holding>(*this); }
  void begin(int64_t /*step*/) override { ran.clear(); }
  void finish(bool /*completed*/) override {}

 private:
  struct Holding final : Device {
    explicit Holding(HoldingBackend& backend) : backend(backend) {}
    void attach() override {}
    void run(const ActionContext& context) override { backend.run(context); }
    HoldingBackend& backend;
  };

  void run(const ActionContext& context) {
    const std::string& name = executable_.segments[context.segment].name;
    std::unique_lock lock(mutex_);
    if (name == held && context.micro_batch == executable_.micro_batches - 1)
      was_met = changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ran.contains(until); });
    if (name == failing) throwUser(ErrorCode::E0601, {.what = "fails"});
    ran.insert(name);
    changed_.notify_all();
  }

  const exe::Executable& executable_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

TEST(SumsOverProcesses, BeginWhileBackwardOfAnEarlierStageRuns) {
  const exe::Executable executable = makeSums(3);
  HoldingBackend backend(executable);
  backend.held = "bwd/0";
  backend.until = "reduce/processes/bucket0";
  Runtime runtime(executable, backend);
  runtime.run();
  EXPECT_TRUE(backend.was_met);
  EXPECT_TRUE(backend.ran.contains("update/0") && backend.ran.contains("update/1"));
}

TEST(SumsOverProcesses, NoUpdateRunsWhereOneOfThemFails) {
  const exe::Executable executable = makeSums(3);
  for (const char* failing : {"reduce/processes/bucket0", "reduce/processes/bucket1", "bwd/0"}) {
    HoldingBackend backend(executable);
    backend.failing = failing;
    Runtime runtime(executable, backend);
    EXPECT_THROW(runtime.run(), Error) << failing;
    EXPECT_FALSE(backend.ran.contains("update/0") || backend.ran.contains("update/1")) << failing;
  }
}

}  // namespace
}  // namespace abele::runtime
