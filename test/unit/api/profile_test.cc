// Profiles, traces and report pages that a C++ program writes.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace profile_test {

using abele::test::codeOf;
namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "abele_profile_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

nlohmann::json read(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(Profile, IsWrittenAtCompileAndAfterTheFirstRuns) {
  const Folder folder;
  abele::Options options;
  options.enableProfiling((folder.path / "new").string());
  auto model = abele::inferenceModel([](at::Tensor x) { return torch::relu(x); }, options);
  const at::Tensor x = torch::ones({2, 3});
  model.compile(x);
  const fs::path file = folder.path / "new" / "inference" / "profile.pop";
  EXPECT_TRUE(read(file)["execution"].empty());
  for (int run = 0; run < 4; ++run) model(x);
  const nlohmann::json profile = read(file);
  EXPECT_EQ(profile["format"], "abele-profile");
  EXPECT_GT(profile["compilation"]["compile_s"], 0);
  EXPECT_FALSE(profile["memory"].empty());
  ASSERT_EQ(profile["execution"].size(), 2);
  EXPECT_EQ(profile["execution"][0]["stages"][0]["device"], 0);
}

TEST(Profile, TheVariableAsksForOneAndNamesItsFolder) {
  const Folder folder;
  const auto set = [](const std::string& text) { setenv("POPLAR_ENGINE_OPTIONS", text.c_str(), 1); };
  const auto run = [](const std::string& name) {
    abele::Options options;
    options.modelName(name);
    auto model = abele::inferenceModel([](at::Tensor x) { return torch::relu(x); }, options);
    model(torch::ones({2}));
  };
  const std::string where = nlohmann::json(folder.path.string()).dump();
  set(R"({"autoReport.directory": )" + where + "}");
  run("none");
  EXPECT_TRUE(fs::is_empty(folder.path));
  set(R"({"autoReport.outputExecutionProfile": "true", "autoReport.directory": )" + where + "}");
  run("mine");
  const fs::path file = folder.path / "mine" / "profile.pop";
  EXPECT_EQ(read(file)["execution"].size(), 1);
  set(R"({"autoReport.all": "true", "autoReport.directory": )" + nlohmann::json(file.string()).dump() + "}");
  EXPECT_EQ(codeOf([&] { run("none"); }), "E0712");
  set("[]");
  EXPECT_EQ(codeOf([&] { run("none"); }), "E0702");
  unsetenv("POPLAR_ENGINE_OPTIONS");
}

std::string textOf(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Trace, NamesStagesByTheirBlocks) {
  const Folder folder;
  auto model = abele::inferenceModel([](at::Tensor x) {
    abele::beginBlock("encode \"x\"", 0);
    return torch::relu(x);
  });
  const at::Tensor x = torch::ones({2, 3});
  model.compile(x);
  const std::string path = (folder.path / "run.json").string();
  model.trace(path, 1);
  model(x);
  const std::string text = textOf(path);
  for (const char* part : {R"-("device 0: stage 0 (encode \"x\")")-", R"-("part": "encode \"x\"")-"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
}

TEST(ReportPage, HasTheFiguresOfTheLastCall) {
  const Folder folder;
  auto model = abele::inferenceModel([](at::Tensor x) { return torch::relu(x); });
  EXPECT_EQ(codeOf([&] { model.report((folder.path / "early.html").string()); }), "E0705");
  const at::Tensor x = torch::ones({2, 3});
  model.compile(x);
  model.trace((folder.path / "run.json").string(), 1);
  model(x);
  const fs::path page = folder.path / "made" / "page.html";
  model.report(page.string());
  const std::string text = textOf(page);
  for (const char* part :
       {"\"title\":\"inference\"", "\"device 0", "\"inference, measured\"", "% of the time; the rest"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  abele::writeReport((folder.path / "run.html").string(), (folder.path / "run.json").string());
  EXPECT_NE(textOf(folder.path / "run.html").find("[\"1\",\"traced calls\"]"), std::string::npos);
  EXPECT_EQ(codeOf([&] { abele::writeReport("page.html", page.string()); }), "E0501");
}

TEST(Popdist, WithoutALauncherThereIsOneProcess) {
  EXPECT_FALSE(abele::popdist::isPopdistEnvSet());
  EXPECT_EQ(abele::popdist::getNumInstances(), 1);
  abele::popdist::init();
  abele::popdist::synchronize();
  int calls = 0;
  abele::popdist::executeOnInstances({0}, [&] { ++calls; });
  abele::popdist::executeOnInstances({1}, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  abele::Options options;
  abele::joinProcesses(options);
  EXPECT_EQ(options.Distributed().num_distributed_processes(), 1);
}

TEST(Popdist, TheLaunchersVariablesSayThePlace) {
  setenv("POPDIST_NUM_TOTAL_REPLICAS", "6", 1);
  setenv("POPDIST_NUM_LOCAL_REPLICAS", "2", 1);
  setenv("POPDIST_REPLICA_INDEX_OFFSET", "4", 1);
  EXPECT_TRUE(abele::popdist::isPopdistEnvSet());
  EXPECT_EQ(abele::popdist::getNumInstances(), 3);
  EXPECT_EQ(abele::popdist::getInstanceIndex(), 2);
  setenv("POPDIST_NUM_LOCAL_REPLICAS", "two", 1);
  EXPECT_EQ(codeOf([] { abele::popdist::getNumLocalReplicas(); }), "E0702");
  setenv("POPDIST_NUM_LOCAL_REPLICAS", "0", 1);
  EXPECT_EQ(codeOf([] { abele::popdist::getNumInstances(); }), "E0702");
  setenv("POPDIST_NUM_LOCAL_REPLICAS", "2", 1);
  setenv("POPDIST_REPLICA_INDEX_OFFSET", "6", 1);
  EXPECT_EQ(codeOf([] { abele::popdist::getInstanceIndex(); }), "E0702");
  for (const char* name : {"POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"})
    unsetenv(name);
}

TEST(Processes, PlacesThatCannotBeAreRefused) {
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "2", 1);
  abele::Options options;
  const std::string text = abele::test::errorOf([&] { abele::joinProcesses(options); });
  EXPECT_TRUE(text.starts_with("E0702")) << text;
  EXPECT_NE(text.find("RANK is 2"), std::string::npos) << text;
  unsetenv("WORLD_SIZE");
  unsetenv("RANK");
}

TEST(Channel, WithoutTracingDoesNothing) {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  const abele::profiling::Channel channel("c");
  {
    const auto span = channel.tracepoint("t");
    EXPECT_EQ(channel.instrument("add", [](int a, int b) { return a + b; })(1, 2), 3);
  }
  fs::current_path(before);
  EXPECT_TRUE(fs::is_empty(folder.path));
}

}  // namespace profile_test
