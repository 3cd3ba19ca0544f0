// The device contract: names, memory, transfers, bindings.
#include <set>

#include "conformance.h"
#include "runtime/runtime.h"

namespace abele::device::testing {
namespace {

using exe::ExternalKind;
using exe::GroupKind;

struct Memory : Conformance {
  static at::Tensor roundTrip(const Type& type, const at::Tensor& host) {
    Program p;
    p.external(type, ExternalKind::kParameter);
    const auto backend = load(p);
    backend->upload(0, host);
    at::Tensor back = at::empty_like(host);
    backend->download(0, back);
    return back;
  }
};

// --- names -----------------------------------------------------------------------------------------------------------

TEST(MakeBackend, RefusesNamesThatNoRowHas) {
  const Program p;
  try {
    makeBackend("abacus", p.executable, {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0702);
    for (const BackendRow& row : allBackends()) EXPECT_NE(std::string(error.what()).find(row.name), std::string::npos);
  }
}

TEST(MakeBackend, EveryRowHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const BackendRow& row : allBackends()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

TEST_P(Memory, RefusesADeviceWithoutThreads) {
  const Program p;
  EXPECT_EQ(codeOf([&] { load(p, {.threads_per_device = 0}); }), "E0702");
}

// --- memory ----------------------------------------------------------------------------------------------------------

TEST_P(Memory, MemoryStartsAsTheExecutableSays) {
  Program p;
  p.external(f32({3}), ExternalKind::kParameter);
  p.external(f32({2}), ExternalKind::kState, 0.5);
  p.external(contiguousType(DType::kFloat16, {2}), ExternalKind::kAccumulator);
  const auto backend = load(p);
  EXPECT_TRUE(sameBits(backend->value(0), at::zeros({3})));
  EXPECT_TRUE(sameBits(backend->value(1), at::full({2}, 0.5)));
  EXPECT_TRUE(sameBits(backend->value(2), at::zeros({2}, at::kHalf)));
}

// A device with its own memory cannot lend host memory.
TEST_P(Memory, WhatADeviceLendsIsTheExternal) {
  Program p;
  p.external(f32({3, 4}), ExternalKind::kState);
  const auto backend = load(p);
  const at::Tensor host = at::randn({3, 4});
  backend->upload(0, host);
  const at::Tensor lent = backend->memory(0);
  EXPECT_TRUE(!lent.defined() || sameBits(lent, host));
}

TEST_P(Memory, CopiesInAndOutKeepEveryElementType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte,
                                    at::kBool, at::kComplexFloat}) {
    SCOPED_TRACE(at::toString(type));
    const at::Tensor host = at::randn({3, 4}).mul(3).abs().to(type);
    EXPECT_TRUE(sameBits(roundTrip(contiguousType(static_cast<DType>(type), {3, 4}), host), host));
  }
}

TEST_P(Memory, CopiesInAndOutTakeAnyLayout) {
  const at::Tensor whole = at::randn({4, 6});
  for (const at::Tensor& host : {at::randn({4, 3}).t(), whole.narrow(1, 1, 4).narrow(0, 0, 3),
                                 at::ones({1}).expand({3, 4}), at::randn({3, 4}).set_requires_grad(true)})
    EXPECT_TRUE(sameBits(roundTrip(f32({3, 4}), host.requires_grad() ? host : host.clone()), host));
  Program p;
  p.external({DType::kFloat32, {3, 4}, {1, 3}}, ExternalKind::kParameter);  // lies otherwise on the device
  const auto backend = load(p);
  const at::Tensor host = at::randn({3, 4});
  backend->upload(0, host);
  EXPECT_TRUE(sameBits(backend->value(0), host));
  at::Tensor back = at::zeros({6, 4}), rows = back.narrow(0, 2, 3);
  backend->download(0, rows);
  EXPECT_TRUE(sameBits(back.narrow(0, 2, 3), host));
  EXPECT_TRUE(sameBits(back.narrow(0, 5, 1), at::zeros({1, 4})));
}

TEST_P(Memory, CopiesAreDoneWhenTheCallReturns) {
  Program p;
  p.external(f32({1000}), ExternalKind::kParameter);
  at::Tensor value;
  const at::Tensor expected = at::randn({1000});
  {
    const auto backend = load(p);
    at::Tensor host = expected.clone();
    backend->upload(0, host);
    host.fill_(-1);
    value = backend->value(0);
    backend->value(0).fill_(7);
    EXPECT_TRUE(sameBits(backend->value(0), expected)) << "a value is a copy";
    backend->upload(0, at::zeros({1000}));
  }
  EXPECT_TRUE(sameBits(value, expected)) << "and outlives its device";
}

TEST_P(Memory, ViewsShareMemory) {
  Program p;
  const int32_t whole = p.external(f32({2, 3}), ExternalKind::kParameter);
  const int32_t row = p.viewOf(whole, 3 * 4, f32({3}));
  p.executable.externals.push_back({"row", ExternalKind::kBuffer, row, -1, 0});
  const auto backend = load(p);
  const at::Tensor host = at::randn({2, 3});
  backend->upload(0, host);
  EXPECT_TRUE(sameBits(backend->value(1), host[1]));
  backend->upload(1, at::ones({3}));
  EXPECT_TRUE(sameBits(backend->value(0), at::stack({host[0], at::ones({3})})));
}

TEST_P(Memory, ReplicasHaveTheCopiesThatTheExecutableSays) {
  Program p;
  const int32_t first = p.external(f32({2}), ExternalKind::kParameter), second = p.slot(p.weights, f32({2}));
  p.executable.replicas = 3;
  p.executable.externals[0].replica_slots = {first, second, first};
  const auto backend = load(p);
  backend->upload(0, at::full({2}, 1.0));
  backend->upload(0, at::full({2}, 2.0), /*replica=*/1);
  EXPECT_TRUE(sameBits(backend->value(0, 0), at::full({2}, 1.0)));
  EXPECT_TRUE(sameBits(backend->value(0, 1), at::full({2}, 2.0)));
  EXPECT_TRUE(sameBits(backend->value(0, 2), at::full({2}, 1.0)));
  backend->upload(0, at::full({2}, 3.0), /*replica=*/2);
  at::Tensor host = at::empty({2});
  backend->download(0, host, /*replica=*/0);
  EXPECT_TRUE(sameBits(host, at::full({2}, 3.0))) << "0 and 2 share one";
  EXPECT_FALSE(backend->placeIn(0, at::ones({2}))) << "one tensor cannot be two copies";
}

TEST_P(Memory, ExternalsThatTheProgramDoesNotUseAreLeftAlone) {
  Program p;
  p.executable.externals.push_back({"unused", ExternalKind::kParameter, -1, -1, 0});
  const auto backend = load(p);
  backend->upload(0, at::ones({5}));
  at::Tensor host = at::ones({5});
  backend->download(0, host);
  EXPECT_TRUE(sameBits(host, at::ones({5})));
  EXPECT_FALSE(backend->value(0).defined());
  EXPECT_FALSE(backend->writes(0));
  EXPECT_FALSE(backend->placeIn(0, host));
}

TEST_P(Memory, RefusesTensorsOfAnotherType) {
  Program p;
  p.external(f32({3, 4}), ExternalKind::kParameter);
  const auto backend = load(p);
  backend->upload(0, at::ones({3, 4}));
  for (at::Tensor wrong : {at::zeros({4, 3}), at::zeros({12}), at::zeros({3, 4}, at::kDouble)}) {
    EXPECT_EQ(codeOf([&] { backend->upload(0, wrong); }), "E0704");
    EXPECT_EQ(codeOf([&] { backend->download(0, wrong); }), "E0704");
  }
  EXPECT_TRUE(sameBits(backend->value(0), at::ones({3, 4})));
}

// A device that cannot use the host's memory says so and keeps using its own.
TEST_P(Memory, WorksInMemoryOfTheHostOrSaysThatItDoesNot) {
  Program p;
  const int32_t in = p.input(f32({4})), weight = p.external(f32({4}), ExternalKind::kParameter);
  p.op("abele::copy", {Arg::id(weight), Arg::id(in)}).writes = {weight};
  Runner runner(p);
  const at::Tensor host = at::randn({4}), before = host.clone();
  runner.backend().upload(0, host);
  EXPECT_FALSE(runner.backend().placeIn(0, at::ones({5})));
  const bool is_placed = runner.backend().placeIn(0, host);
  runner.backend().upload(0, host);
  EXPECT_TRUE(sameBits(runner.backend().value(0), before));
  const at::Tensor x = at::randn({4});
  runner.step({x});
  EXPECT_TRUE(sameBits(runner.backend().value(0), x));
  EXPECT_TRUE(sameBits(host, is_placed ? x : before));
  runner.backend().placeIn(0, at::Tensor());
  runner.backend().upload(0, before);
  runner.step({x + 1});
  EXPECT_TRUE(sameBits(runner.backend().value(0), x + 1));
  EXPECT_TRUE(sameBits(host, is_placed ? x : before)) << "no longer the device's";
}

TEST_P(Memory, KnowsWhatTheProgramWrites) {
  Program p;
  const int32_t in = p.input(f32({4})), buffer = p.external(f32({4}), ExternalKind::kBuffer);
  p.external(f32({4}), ExternalKind::kParameter);
  p.op("abele::copy", {Arg::id(buffer), Arg::id(in)}).writes = {buffer};
  const auto backend = load(p);
  EXPECT_TRUE(backend->writes(0));
  EXPECT_FALSE(backend->writes(1));
}

TEST_P(Memory, CountsTheMemoryOfThePlan) {
  Program p(/*micro_batches=*/2, /*frames=*/2);
  p.external(f32({16}), ExternalKind::kParameter);
  p.value(f32({64}));
  p.executable.groups[p.values].worker = 0;
  const auto backend = load(p);
  EXPECT_EQ(backend->allocatedBytes(0), exe::residentBytes(p.executable, 0));
  EXPECT_EQ(backend->allocatedBytes(1), 0);
  EXPECT_GE(backend->residentBytes(0), 0);
  EXPECT_EQ(backend->fileBytes(), 0);
  const Allocations before = backend->allocations();
  EXPECT_GE(before.count, 0);
  EXPECT_GE(before.bytes, 0);
}

TEST_P(Memory, OffChipMemoryKeepsItsContentsWhileItComesAndGoes) {
  Program p;
  const int32_t group = p.group(GroupKind::kPersistent, 1, "off-chip");
  p.executable.groups[group].off_chip = true;
  p.executable.externals.push_back({"weight", ExternalKind::kParameter, p.slot(group, f32({4096})), -1, 0});
  for (exe::Action& action : p.executable.workers[0].actions) action.fetches.push_back({group, 0, false});
  if (codeOf([&] { load(p); }) == "E0711") GTEST_SKIP() << "refused by this device";
  for (const int64_t limit : {-1, 0}) {
    SCOPED_TRACE(limit);
    const auto backend = load(p, {.off_chip_memory_limit = limit});
    const at::Tensor host = at::randn({4096});
    backend->upload(0, host);
    EXPECT_EQ(backend->allocatedBytes(0), exe::residentBytes(p.executable, 0));
    EXPECT_TRUE(backend->fileBytes() == 0 || limit == 0);
    EXPECT_TRUE(backend->movesOffChipMemory() || backend->fileBytes() == 0);
    if (backend->movesOffChipMemory())
      for (const bool writes : {false, true}) {
        backend->fetch({group, 0, writes});
        EXPECT_TRUE(sameBits(backend->value(0), host));
        backend->release({group, 0, writes});
      }
    EXPECT_TRUE(sameBits(backend->value(0), host));
  }
}

// --- bindings --------------------------------------------------------------------------------------------------------

TEST_P(Memory, InputsAreRowsAndResultsComeByMicroBatch) {
  Program p(/*micro_batches=*/4, /*frames=*/2);
  const int32_t in = p.input(f32({2, 3})), other = p.input(contiguousType(DType::kInt64, {1}));
  p.emit(in);
  p.emit(p.viewOf(in, 12, f32({3})));  // its last row
  p.emit(other);
  expectVerified(p);
  Runner runner(p);
  const at::Tensor numbers = at::arange(4, at::kLong);
  for (const at::Tensor& x : {at::randn({8, 3}), at::randn({3, 8}).t(), at::randn({8, 6}).narrow(1, 2, 3)}) {
    const auto results = runner.step({x, numbers});
    for (int64_t k = 0; k < 4; ++k) {
      EXPECT_TRUE(sameBits(results[0][k], x.narrow(0, 2 * k, 2)));
      EXPECT_TRUE(sameBits(results[1][k], x[2 * k + 1]));
      EXPECT_TRUE(sameBits(results[2][k], numbers.narrow(0, k, 1)));
    }
  }
}

TEST_P(Memory, OneMicroBatchTakesTheWholeTensor) {
  Program p;
  p.emit(p.input(f32({})));
  Runner runner(p);
  EXPECT_TRUE(sameBits(runner.step({at::scalar_tensor(2.5)})[0][0], at::scalar_tensor(2.5)));
}

TEST_P(Memory, RefusesInputsThatDifferFromTheCompiledOnes) {
  Program p(2);
  p.input(f32({2, 3}));
  p.executable.input_slots.push_back(-1);  // unused: may be anything
  const auto backend = load(p);
  const at::Tensor unused;
  EXPECT_EQ(codeOf([&] { backend->bindInputs({at::zeros({6, 3}), unused}); }), "E0704");
  EXPECT_EQ(codeOf([&] { backend->bindInputs({at::zeros({4, 2}), unused}); }), "E0704");
  EXPECT_EQ(codeOf([&] { backend->bindInputs({at::zeros({4, 3}, at::kDouble), unused}); }), "E0704");
  EXPECT_EQ(codeOf([&] { backend->bindInputs({at::zeros({4, 3})}); }), "E0704");
  EXPECT_EQ(codeOf([&] { backend->bindInputs({at::zeros({4, 3}), unused}); }), "none");
}

TEST_P(Memory, UnboundResultsAreSkippedAndSumsAdd) {
  Program p(3);
  const int32_t in = p.input(f32({1, 2}));
  p.emit(in);
  p.emit(in);
  Runner runner(p);
  const at::Tensor x = at::randn({3, 2}), last = at::zeros({1, 2}), sum = at::full({1, 2}, 7.0);
  runner.stepInto({x}, {{at::Tensor(), at::Tensor(), last}, {sum, sum, sum}});
  EXPECT_TRUE(sameBits(last, x.narrow(0, 2, 1)));
  EXPECT_TRUE(sameBits(sum, x.narrow(0, 0, 1) + x.narrow(0, 1, 1) + x.narrow(0, 2, 1)));
  runner.stepInto({x * 2}, {{}, {}});
  EXPECT_TRUE(sameBits(last, x.narrow(0, 2, 1))) << "a binding is for one step";
}

TEST_P(Memory, ReplicasTakeTheirPartsOfTheInputs) {
  Program p(/*micro_batches=*/2);
  exe::Executable& e = p.executable;
  for (int r = 0; r < 2; ++r) p.input(f32({2}));
  e.replicas = 2;
  e.input_part = {0, 1};
  e.segments[1] = {0, exe::Direction::kForward, "fwd/0", {}, /*replica=*/1};
  for (int r = 0; r < 2; ++r) {
    const int32_t out = p.output(f32({2}));
    p.op("abele::emit", {Arg::id(out), Arg::id(e.input_slots[r])}, {}, r).writes = {out};
  }
  e.workers = {{0, {{0, 0, {}}, {0, 1, {}}}, 0}, {1, {{1, 0, {}}, {1, 1, {}}}, 1}};
  expectVerified(p);
  const auto backend = load(p);
  runtime::Runtime runtime(e, *backend);
  const at::Tensor x = at::arange(8, at::kFloat);
  std::vector<std::vector<at::Tensor>> results(2);
  for (auto& of_replica : results)
    for (int k = 0; k < 2; ++k) of_replica.push_back(at::empty({2}));
  backend->bindInputs({x});
  backend->bindOutputs(results);
  runtime.run();
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t k = 0; k < 2; ++k) EXPECT_TRUE(sameBits(results[r][k], x.narrow(0, 2 * (2 * k + r), 2))) << r << k;
}

INSTANTIATE_TEST_SUITE_P(Devices, Memory, ::testing::ValuesIn(allBackends()), nameOf);

}  // namespace
}  // namespace abele::device::testing
