// Saved programs and cache entries: only complete files of the same program are accepted.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>

#include <sys/resource.h>
#include <unistd.h>

#include "../../fuzz/file_mutator.h"
#include "../../fuzz/sealed.h"
#include "../../support/child.h"
#include "../session/networks.h"
#include "abele/model.h"
#include "base/error.h"
#include "base/whole_file.h"
#include "compile/compiled_program.h"
#include "compile/executable_cache.h"
#include "files/program_file.h"

namespace abele::test {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    std::string name = testing::TempDir() + "/abele_files_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(folder_); }
  std::vector<fs::path> entries() const { return {fs::directory_iterator(folder_), fs::directory_iterator()}; }
  fs::path folder_;
};

int numMutations() {
  const char* asked = std::getenv("ABELE_MUTATIONS");
  return asked ? std::atoi(asked) : 60;
}

struct TrainedInCache {
  explicit TrainedInCache(const std::string& name, const std::string& cache = {})
      : network(makeNetwork(name, 2)), view(*network), session(options(cache)) {
    torch::manual_seed(17);
    data = network->sample(16);
    session.compile(view.program, data, specFor(*network, optim::Adam{.lr = 0.01}));
  }
  static compile::ProgramOptions options(const std::string& cache) {
    compile::ProgramOptions options;
    options.training = true;
    options.gradient_accumulation = 4;
    options.threads_per_device = 1;
    options.has_seed = true;
    options.cache_path = cache;
    return options;
  }

  std::shared_ptr<Network> network;
  ModelView view;
  session::Session session;
  Tensors data;
};

TEST_F(Files, EntryOfAnotherProgramIsAMiss) {
  const std::string cache = folder_;
  TrainedInCache first("mlp", cache);
  const fs::path entry = entries().at(0);
  const std::string own = readWholeFile(entry);
  fs::remove(entry);
  TrainedInCache other("conv", cache);
  // The other program's file under the first one's name, and under its own what is no program.
  fs::rename(entries().at(0), entry);
  testing::internal::CaptureStderr();
  TrainedInCache again("mlp", cache);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("it holds another program"), std::string::npos);
  EXPECT_FALSE(again.session.report().from_cache);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(torch::equal(first.session.run(first.data)[0], again.session.run(again.data)[0]));
  EXPECT_EQ(readWholeFile(entry), own);  // it was written again
  TrainedInCache found("mlp", cache);
  EXPECT_TRUE(found.session.report().from_cache);
}

// The key is right, but the executable does not fit: any failure while it is used is a miss.
TEST_F(Files, EntryThatCannotBeUsedIsAMiss) {
  const std::string cache = folder_;
  TrainedInCache first("mlp", cache);
  const fs::path entry = entries().at(0);
  const auto changed = [&](auto change) {
    compile::CompiledProgram program = compile::decodeProgram(readWholeFile(entry));
    change(program);
    writeWholeFile(entry, encode(program));
    testing::internal::CaptureStderr();
    TrainedInCache again("mlp", cache);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("is compiled again"), std::string::npos);
    EXPECT_FALSE(again.session.report().from_cache);
    return again.session.run(again.data)[0];
  };
  const at::Tensor loss = first.session.run(first.data)[0];
  EXPECT_TRUE(
      torch::equal(loss, changed([](compile::CompiledProgram& p) { p.executable.externals[0].name = "other"; })));
  EXPECT_TRUE(torch::equal(loss, changed([](compile::CompiledProgram& p) {
                             for (exe::Instruction& i : p.executable.segments[0].instructions)
                               if (i.op.starts_with("aten::")) i.op = "aten::no_such_operator";
                           })));
  EXPECT_TRUE(torch::equal(loss, changed([](compile::CompiledProgram& p) {
                             for (exe::Instruction& i : p.executable.segments[0].instructions)
                               if (i.op.starts_with("aten::")) i.args.push_back(Arg::integer(1));
                           })));
  EXPECT_TRUE(torch::equal(loss, changed([](compile::CompiledProgram& p) {
                             for (exe::Group& g : p.executable.groups)
                               if (g.frame_bytes > 0) g.frame_bytes = int64_t{1} << 44;  // 16 TiB
                           })));
  fs::remove(entry);
  fs::create_symlink(entry, entry);
  testing::internal::CaptureStderr();
  TrainedInCache again("mlp", cache);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("is compiled again"), std::string::npos);
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(entry)));
}

// Changed entries, with the checksum of the header repaired, in a folder that is used as a cache. ABELE_MUTATIONS: the
// number of changes.
TEST_F(Files, ChangedEntriesAreMisses) {
  const int count = numMutations();
  const std::string cache = folder_;
  TrainedInCache first("mlp", cache);
  const at::Tensor loss = first.session.run(first.data)[0];
  const fs::path entry = entries().at(0);
  const std::string original = readWholeFile(entry);
  std::mt19937_64 random(6);
  for (int i = 0; i < count; ++i) {
    compile::CompiledProgram program = compile::decodeProgram(original);
    FileMutator{random}(program);
    std::string bytes = compile::encode(program);
    if (bytes == original) continue;
    std::ofstream(entry, std::ios::binary) << underIdentityOf(bytes, original);
    testing::internal::CaptureStderr();
    TrainedInCache again("mlp", cache);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_NE(log.find("is compiled again: a changed file"), std::string::npos) << i << log;
    ASSERT_FALSE(again.session.report().from_cache) << i;
    ASSERT_TRUE(torch::equal(loss, again.session.run(again.data)[0])) << i;
    ASSERT_EQ(readWholeFile(entry), original) << i;  // it was written again
  }
}

TEST_F(Files, FullDiskInTheFolderOfTheCacheIsAWarning) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{512, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  testing::internal::CaptureStderr();
  TrainedInCache trained("mlp", folder_);
  const std::string log = testing::internal::GetCapturedStderr();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(entries().empty());
  EXPECT_FALSE(trained.session.run(trained.data).empty());
}

/// Runs fn in its own process. 0: fn returned. 1: it threw an error of ours. -1: anything else happened.
int outcomeOf(const std::function<void()>& fn) {
  const int status = inChild([&] {
    ::alarm(30);
    try {
      fn();
    } catch (const Error&) {
      return 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 2;
    }
    return 0;
  });
  return status <= 1 ? status : -1;
}

// Programs with changed fields, in files that are otherwise valid: each is refused, or runs to the end. mutations_test
// does the same for all files on the null device; this uses ATen's kernels. ABELE_MUTATIONS: the number of changes.
TEST_F(Files, ChangedProgramsAreRefusedOrRun) {
  const int count = numMutations();
  at::set_num_threads(1);  // a child has no other threads
  std::vector<std::unique_ptr<TrainedInCache>> originals;
  for (const char* name : {"mlp", "conv", "dropout"}) originals.push_back(std::make_unique<TrainedInCache>(name));
  std::mt19937_64 random(5);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    TrainedInCache& original = *originals[static_cast<size_t>(i) % originals.size()];
    compile::CompiledProgram program = original.session.program();
    for (uint64_t n = 1 + random() % 3; n > 0; --n) exe::mutate(program.executable, random);
    const int status = outcomeOf([&] {
      session::Session session(TrainedInCache::options({}));
      session.load(compile::decodeProgram(encode(program)), original.view.program.model);
      for (int step = 0; step < 2; ++step) session.run(original.data);
    });
    ASSERT_GE(status, 0) << "file " << i;
    refused += status;
  }
  std::printf("%d files: %d refused, %d ran\n", count, refused, count - refused);
}

// The same for saved models, including their forms, weights, optimizer state and random state.
TEST_F(Files, ChangedModelsAreRefusedOrRun) {
  const int count = numMutations();
  at::set_num_threads(1);  // a child has no other threads
  TrainedInCache trained("dropout");
  trained.session.run(trained.data);
  files::ProgramFile original;
  original.program = encode(trained.session.program());
  original.form = original.result_form = "tt";
  original.has_model = true;
  for (const capture::ModelTensor& m : trained.view.program.model)
    original.tensors.push_back({m.name, *m.tensor, m.is_parameter});
  original.optimizer_state = trained.session.optimizerState();
  original.rng_state = trained.session.rngState();
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    files::ProgramFile file = original;
    for (uint64_t n = 1 + random() % 2; n > 0; --n) FileMutator{random}(file);
    const std::string path = folder_ / "model.poptorch";
    std::ofstream(path, std::ios::binary) << encode(file);
    const int status = outcomeOf([&] {
      TrainingModel model = loadTrainingModel(path, Options().threadsPerDevice(1));
      for (int step = 0; step < 2; ++step) model(trained.data);
      model.copyWeightsToHost();
    });
    ASSERT_GE(status, 0) << "file " << i;
    refused += status;
  }
  std::printf("%d files: %d refused, %d ran\n", count, refused, count - refused);
}

TEST_F(Files, AreOldOrNewWhenTheirWriterIsKilled) {
  at::set_num_threads(1);  // a child has no other threads
  TrainedInCache trained("conv");
  const compile::CompiledProgram program = trained.session.program();
  const std::string path = folder_ / "file.poptorch", cache_folder = folder_ / "cache";
  files::ProgramFile files[2];
  for (int i = 0; i < 2; ++i) {
    files[i].has_model = true;
    files[i].version = i == 0 ? "old" : "new";
    files[i].program = encode(program);
    files[i].tensors.assign(1, {"w", torch::full({10'000 * (i + 1)}, i), true});
  }
  writeProgramFile(path, files[0]);
  compile::ExecutableCache(cache_folder).store("key", program);
  const auto write = [&](int k) {
    writeProgramFile(path, files[k % 2]);
    compile::ExecutableCache(cache_folder).store("key", program);
  };
  killWriters(400'000, write, [&](int i) {
    // The next start.
    const files::ProgramFile found = files::readProgramFile(path);
    ASSERT_TRUE(found.version == "old" || found.version == "new") << i;
    ASSERT_EQ(found.tensors.at(0).tensor.numel(), found.version == "old" ? 10'000 : 20'000);
    const compile::ExecutableCache cache(cache_folder);
    ASSERT_NO_THROW(compile::decodeProgram(readWholeFile(cache_folder + "/key.abx"))) << i;
    ASSERT_EQ(entries().size(), 2u) << i;
    ASSERT_EQ(std::distance(fs::directory_iterator(cache_folder), fs::directory_iterator()), 1) << i;
  });
}

}  // namespace
}  // namespace abele::test
