// A compiled program as data: its bytes, sessions that take it over, the cache, anchors and times.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "../../support/code_of.h"
#include "../session/networks.h"
#include "base/error.h"
#include "compile/compiled_program.h"
#include "compile/executable_cache.h"
#include "files/program_file.h"

namespace abele::test {
namespace {

compile::ProgramOptions options() {
  compile::ProgramOptions options;
  options.training = true;
  options.device_iterations = 2;
  options.gradient_accumulation = 2;
  options.threads_per_device = 1;
  options.has_seed = true;
  options.seed = 4;
  return options;
}

struct Trained {
  explicit Trained(const std::string& name, compile::ProgramOptions chosen = options())
      : network(makeNetwork(name, 2)), view(*network), session(std::move(chosen)) {
    torch::manual_seed(17);
    data = network->sample(16);
  }
  void compile() { session.compile(view.program, data, specFor(*network, optim::Adam{.lr = 0.01})); }
  at::Tensor loss() { return session.run(data)[0]; }

  std::shared_ptr<Network> network;
  ModelView view;
  session::Session session;
  Tensors data;
};

struct Folder {
  Folder() : path(std::filesystem::path(testing::TempDir()) / "abele_program_test") { clear(); }
  ~Folder() { clear(); }
  void clear() { std::filesystem::remove_all(path); }
  std::vector<std::filesystem::path> files() const {
    return {std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()};
  }
  std::filesystem::path path;
};

TEST(Program, RunsInAnotherSession) {
  for (const char* name : {"mlp", "conv", "lstm", "tied", "skip", "dropout"}) {
    Trained a(name), b(name);
    a.compile();
    const std::string bytes = encode(a.session.program());
    EXPECT_EQ(encode(compile::decodeProgram(bytes)), bytes) << name;
    b.session.load(compile::decodeProgram(bytes), b.view.program.model);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(a.loss(), b.loss())) << name << ", step " << i;
    EXPECT_EQ(a.session.tensorNames(), b.session.tensorNames());
    EXPECT_EQ(codeOf([&] { b.session.graph(); }), "E0705");
    EXPECT_EQ(b.session.report().stages.size(), 2u);
  }
}

TEST(Program, RefusesDamagedBytes) {
  Trained a("mlp");
  a.compile();
  const std::string bytes = encode(a.session.program());
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = bytes;
    if (i % 3 == 0)
      damaged.resize(random() % bytes.size());
    else
      damaged[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    EXPECT_EQ(codeOf([&] { compile::decodeProgram(damaged); }), "E0501");
  }
}

TEST(Program, RefusesFieldsThatDoNotBelongTogether) {
  Trained a("dropout");
  a.compile();
  files::ProgramFile whole;
  whole.program = encode(a.session.program());
  whole.has_model = true;
  whole.tensors = {{"w", at::ones({2}), true}};
  whole.optimizer_state = {{"exp_avg/w", at::ones({2})}};
  whole.rng_state = a.session.rngState();
  const auto codeWith = [&](auto change) {
    files::ProgramFile file = whole;
    change(file);
    return codeOf([&] { compile::decodeProgram(files::decodeProgramFile(encode(file)).program); });
  };
  EXPECT_EQ(codeWith([](files::ProgramFile&) {}), "");
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.has_model = false; }), "E0501");
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.options = R"({"deviceIterations": 3})"; }), "");
  for (const char* options : {"x", "[]", R"({"deviceIterations": 0})", R"({"none": 1})", R"({"logDir": 3})"})
    EXPECT_EQ(codeWith([&](files::ProgramFile& file) { file.options = options; }), "E0501") << options;
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.tensors[0].tensor = at::Tensor(); }), "E0501");
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.optimizer_state["exp_avg/w"] = at::Tensor(); }), "E0501");
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.rng_state = at::ones({5}); }), "E0501");
  const auto codeWithParts = [&](const std::string& name, auto change) {
    return codeWith([&](files::ProgramFile& file) {
      file.parts = name;
      file.tensors.clear();
      file.optimizer_state.clear();
      change(file);
    });
  };
  EXPECT_EQ(codeWithParts("index.json", [](files::ProgramFile&) {}), "");
  EXPECT_EQ(codeWithParts("index.json", [](files::ProgramFile& file) { file.has_model = false; }), "E0501");
  EXPECT_EQ(codeWithParts("index.json", [&](files::ProgramFile& file) { file.tensors = whole.tensors; }), "E0501");
  EXPECT_EQ(
      codeWithParts("index.json", [&](files::ProgramFile& file) { file.optimizer_state = whole.optimizer_state; }),
      "E0501");
  for (const char* name : {"../index.json", "/index.json", ".", "..", "a/"})
    EXPECT_EQ(codeWithParts(name, [](files::ProgramFile&) {}), "E0501") << name;
  EXPECT_EQ(codeWith([](files::ProgramFile& file) { file.rng_state = at::zeros_like(file.rng_state); }), "E0501");
  EXPECT_EQ(codeWith([](files::ProgramFile& file) {
              at::Tensor flags = at::ones({2}, at::kBool);
              *static_cast<uint8_t*>(flags.mutable_data_ptr()) = 2;
              file.tensors[0].tensor = flags;
            }),
            "E0501");
  EXPECT_EQ(codeWith([&](files::ProgramFile& file) {
              compile::CompiledProgram program = a.session.program();
              program.optimizer.groups.clear();
              file.program = encode(program);
            }),
            "E0501");
}

// Errors that only a device can find.
TEST(Program, RefusesTensorsThatNoDeviceTakes) {
  Trained a("mlp"), b("mlp");
  a.compile();
  const auto codeWith = [&](auto change) {
    compile::CompiledProgram program = a.session.program();
    for (exe::External& external : program.executable.externals) change(program.executable, external);
    return codeOf([&] { b.session.load(compile::decodeProgram(encode(program)), b.view.program.model); });
  };
  EXPECT_EQ(codeWith([](exe::Executable&, exe::External& external) {
              if (external.kind == exe::ExternalKind::kState) external.initial = 1e300;  // too large for float
            }),
            "E0501");
  EXPECT_EQ(codeWith([](exe::Executable& executable, exe::External& external) {
              if (external.name == "layer4.bias") executable.slots[external.slot].type.strides = {0};
            }),
            "E0501");
  EXPECT_FALSE(b.session.isCompiled());
}

TEST(Program, RefusesAnotherModelAndOtherOptions) {
  Trained a("mlp"), b("conv");
  a.compile();
  EXPECT_EQ(codeOf([&] { b.session.load(a.session.program(), b.view.program.model); }), "E0712");
  EXPECT_FALSE(b.session.isCompiled());
  compile::ProgramOptions other = options();
  other.gradient_accumulation = 1;
  Trained c("mlp", other);
  EXPECT_EQ(codeOf([&] { c.session.load(a.session.program(), c.view.program.model); }), "E0712");
}

TEST(Program, RefusesWhatWasDividedByTrialsOfAnotherMachine) {
  compile::ProgramOptions divided = options();
  divided.stages.group = 2;
  Trained a("mlp", divided), b("mlp", divided);
  a.compile();
  const compile::CompiledProgram program = a.session.program();
  b.session.load(program, b.view.program.model);
  EXPECT_TRUE(torch::equal(a.loss(), b.loss()));
  const auto refuse = [&](const std::string& machine, const compile::ProgramOptions& here) {
    compile::CompiledProgram elsewhere = program;
    elsewhere.divided_on = machine;
    Trained c("mlp", here);
    const std::string text = errorOf([&] { c.session.load(elsewhere, c.view.program.model); });
    for (const std::string& part : {std::string("E0712"), machine})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    c.compile();
    EXPECT_NO_THROW(c.loss());
  };
  refuse(cat("Another ", program.divided_on), divided);
  divided.threads_per_device = 2;
  refuse(program.divided_on, divided);
}

TEST(Cache, FindsWhatItStored) {
  const Folder folder;
  compile::ProgramOptions cached = options();
  cached.cache_path = folder.path;
  cached.cache_lock = true;
  Trained plain("dropout"), first("dropout", cached), second("dropout", cached);
  plain.compile();
  first.compile();
  second.compile();
  EXPECT_FALSE(first.session.report().from_cache);
  EXPECT_TRUE(second.session.report().from_cache);
  EXPECT_EQ(folder.files().size(), 1u);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor expected = plain.loss();
    EXPECT_TRUE(torch::equal(first.loss(), expected) && torch::equal(second.loss(), expected)) << i;
  }
  std::ofstream(folder.files()[0]) << "damaged";
  Trained third("dropout", cached);
  third.compile();
  EXPECT_FALSE(third.session.report().from_cache);
  EXPECT_EQ(codeOf([&] { compile::ExecutableCache((folder.files()[0] / "inside").string()); }), "E0712");
}

TEST(Cache, KeysDifferByWhatIsCompiled) {
  const ir::Graph graph;
  const compile::ProgramOptions plain = options();
  const std::string key = compile::cacheKey(graph, plain, {}, {});
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(compile::cacheKey(graph, plain, {}, {}), key);
  compile::ProgramOptions same = plain;
  same.seed = 99;
  same.threads_per_device = 3;
  same.processes.index = 1;
  same.name = "a model";
  same.off_chip_folder = "/nowhere";
  same.share_weights = true;
  same.device = "cpu,cpu";
  EXPECT_EQ(compile::cacheKey(graph, same, {}, {}), key);
  const auto differs = [&](auto change) {
    compile::ProgramOptions other = plain;
    change(other);
    EXPECT_NE(compile::cacheKey(graph, other, {}, {}), key);
  };
  differs([](compile::ProgramOptions& o) { o.device_iterations = 3; });
  differs([](compile::ProgramOptions& o) { o.mean_reduction = false; });
  differs([](compile::ProgramOptions& o) { o.processes.count = 2; });
  differs([](compile::ProgramOptions& o) { o.strategy = compile::Strategy::kSharded; });
  differs([](compile::ProgramOptions& o) { o.stages.stages.push_back({{"a"}, 1}); });
  differs([](compile::ProgramOptions& o) { o.stages.spaces = {0}; });
  differs([](compile::ProgramOptions& o) { o.schedule = schedule::ScheduleKind::kGPipe; });
  differs([](compile::ProgramOptions& o) { o.fusion = compile::Fusion::kFast; });
  differs([](compile::ProgramOptions& o) { o.device_memory.of_device[1] = 7; });
  differs([](compile::ProgramOptions& o) { o.locations.activations.off_chip = true; });
  differs([](compile::ProgramOptions& o) { o.sharding.states = true; });
  differs([](compile::ProgramOptions& o) { o.groupings.push_back({"w"}); });
  differs([](compile::ProgramOptions& o) { o.device = "cuda:1"; });
  differs([](compile::ProgramOptions& o) { o.anchors.push_back({"a", "b"}); });
  compile::OptimizerSpec optimizer;
  optimizer.rules.kind = passes::OptimizerRules::Kind::kAdam;
  EXPECT_NE(compile::cacheKey(graph, plain, optimizer, {}), key);
  EXPECT_NE(compile::cacheKey(graph, plain, {}, {3}), key);
}

TEST(Anchors, AreValuesOfTheLastCall) {
  compile::ProgramOptions anchored = options();
  anchored.anchors = {{"loss", "loss", compile::OutputMode::kAll}, {"nothing", "no such name"}};
  Trained refused("mlp", anchored);
  EXPECT_EQ(codeOf([&] { refused.compile(); }), "E0708");
  anchored.anchors.pop_back();
  Trained a("mlp", anchored);
  a.compile();
  EXPECT_EQ(codeOf([&] { a.session.anchor("loss"); }), "E0705");
  const at::Tensor losses = a.loss();
  EXPECT_TRUE(torch::equal(a.session.anchor("loss"), losses));
  EXPECT_EQ(codeOf([&] { a.session.anchor("other"); }), "E0708");
}

TEST(Times, OfEveryMicroBatch) {
  Trained a("mlp");
  a.compile();
  EXPECT_TRUE(a.session.perfCounters().input.at(0).empty());
  EXPECT_EQ(a.session.cycles(), 0);
  a.loss();
  const session::PerfCounters counters = a.session.perfCounters();
  ASSERT_EQ(counters.input.at(0).size(), 4u);
  ASSERT_EQ(counters.output.at(0).size(), 4u);
  for (int k = 0; k < 4; ++k) EXPECT_LT(counters.input[0][k], counters.output[0][k]);
  EXPECT_GT(a.session.cycles(), 0);
}

}  // namespace
}  // namespace abele::test
