// Checkpoints: a run that stops and resumes gives the numbers of a run that never stopped; damaged and foreign files
// are refused.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace abele::test::checkpoint_test {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string name = testing::TempDir() + "/abele_checkpoint_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(drop(torch::relu(norm(first(x))))); }
  torch::nn::Linear first = nullptr, second = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Dropout drop = nullptr;
};

DataLoader loaderOf(const Options& options, DataLoaderMode mode = DataLoaderMode::kSync) {
  torch::manual_seed(1);
  return DataLoader(options, {torch::randn({26, 4}), torch::randint(3, {26})},
                    {.batch_size = 2, .shuffle = true, .seed = 5, .mode = mode});
}

optim::Optimizer adam() { return optim::AdamW{.lr = 0.05}; }
optim::Optimizer sgd() { return optim::SGD{.lr = 0.05, .momentum = 0.9}; }

/// A run: its parts, and the losses of its steps.
struct Training {
  explicit Training(uint64_t seed, const optim::Optimizer& optimizer = adam(), int64_t width = 4,
                    DataLoaderMode mode = DataLoaderMode::kSync)
      : loader(loaderOf(options(), mode)), net(made(seed, width)), model(train(optimizer)) {}

  static Options options() {
    Options options;
    options.deviceIterations(2).randomSeed(3);
    return options;
  }
  static std::shared_ptr<Net> made(uint64_t seed, int64_t width) {
    torch::manual_seed(seed);
    auto net = std::make_shared<Net>();
    if (width != 4) net->first = net->replace_module("first", torch::nn::Linear(width, 8));
    return net;
  }
  TrainingModel train(const optim::Optimizer& optimizer) {
    auto forward = [net = net.get()](const at::Tensor& x, const at::Tensor& target) {
      return torch::cross_entropy_loss(net->forward(x), target);
    };
    return trainingModel(net, forward, options(), optimizer);
  }
  /// Runs steps up to `last`, with a falling learning rate, over the passes that this takes.
  void trainTo(int64_t last, const std::string& folder = "") {
    while (step < last)
      for (const auto& batch : loader) {
        losses[step] = model(batch)[0].item<float>();
        optim::Optimizer next = model.optimizer();
        std::visit([](auto& groups) { groups[0].lr *= 0.9; }, next.groups);
        model.setOptimizer(next);
        ++step;
        if (!folder.empty()) saveCheckpoint(folder, model, step, &loader, {.keep = 2});
        if (step == last) break;
      }
  }

  DataLoader loader;
  std::shared_ptr<Net> net;
  TrainingModel model;
  int64_t step = 0;
  std::map<int64_t, float> losses;
};

void expectSame(Training& a, Training& b, int64_t from) {
  for (; from < a.step; ++from) EXPECT_EQ(a.losses.at(from), b.losses.at(from)) << "step " << from;
  const auto expected = a.model.stateDict(), found = b.model.stateDict();
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(torch::equal(tensor, found.at(name))) << name;
  const auto state = b.model.optimizerState();
  for (const auto& [name, tensor] : a.model.optimizerState()) EXPECT_TRUE(torch::equal(tensor, state.at(name))) << name;
}

std::string bytesOf(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}
void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(Checkpoint, ARunThatStopsGoesOnAsIfItHadNot) {
  Training whole(7);
  whole.trainTo(15);
  const auto expectGoesOn = [&](int64_t stop, DataLoaderMode mode) {
    Folder folder;
    Training before(7, adam(), 4, mode), after(8, adam(), 4, mode);
    before.trainTo(stop, folder.path);
    const auto resumed = loadCheckpoint(folder.path, after.model, &after.loader);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->step, stop);
    after.step = resumed->step;
    after.trainTo(15);
    expectSame(whole, after, stop);
  };
  for (const int64_t stop : {1, 4, 6, 7}) expectGoesOn(stop, DataLoaderMode::kSync);  // a pass has six batches
  expectGoesOn(8, DataLoaderMode::kAsync);
}

TEST(Checkpoint, ACompiledModelGoesOnToo) {
  Folder folder;
  Training whole(7), before(7), after(8);
  whole.trainTo(9);
  before.trainTo(4, folder.path);
  after.trainTo(3);
  ASSERT_TRUE(loadCheckpoint(folder.path, after.model, &after.loader));
  after.step = 4;
  after.trainTo(9);
  expectSame(whole, after, 4);
}

TEST(Checkpoint, AnotherOrderOfTheSamplesIsRefused) {
  Folder folder;
  Training before(7), after(8);
  before.trainTo(2, folder.path);
  DataLoader in_order(Training::options(), {torch::randn({26, 4}), torch::randint(3, {26})}, {.batch_size = 2});
  EXPECT_TRUE(in_order.isInOrder());
  EXPECT_FALSE(after.loader.isInOrder());
  EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path, after.model, &in_order); }), "E0712");
  after.trainTo(1);
  saveCheckpoint(folder.path + "/in order", after.model, 1, &in_order);
  EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path + "/in order", before.model, &before.loader); }), "E0712");
  EXPECT_TRUE(loadCheckpoint(folder.path + "/in order", before.model, &in_order));
}

TEST(Checkpoint, AProgramOfAFileTakesTheStateThatWaits) {
  Folder folder;
  Training whole(7), before(7), after(8);
  whole.trainTo(9);
  before.trainTo(4, folder.path);
  before.model.save(folder.path + "/program", {.export_model = false, .save_rng_state = false});
  ASSERT_TRUE(loadCheckpoint(folder.path, after.model, &after.loader));
  after.model.loadExecutable(folder.path + "/program");
  after.step = 4;
  after.trainTo(9);
  expectSame(whole, after, 4);
}

TEST(Checkpoint, TheLastOnesAreKept) {
  Folder folder;
  Training run(7);
  EXPECT_FALSE(loadCheckpoint(folder.path, run.model, &run.loader));
  EXPECT_FALSE(loadCheckpoint(folder.path + "/none", run.model));
  run.trainTo(5, folder.path + "/made");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path + "/made")) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"step-0000000004.safetensors", "step-0000000005.safetensors"}));
  EXPECT_EQ(loadCheckpoint(folder.path + "/made", run.model, &run.loader, 4)->step, 4);
  EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path + "/made", run.model, nullptr, 3); }), "E0712");
  saveCheckpoint(folder.path + "/made", run.model, 2, nullptr, {.keep = 1, .notes = {{"who", "me"}}});
  const auto noted = loadCheckpoint(folder.path + "/made", run.model);
  EXPECT_EQ(noted->step, 2);
  EXPECT_EQ(noted->notes, (std::map<std::string, std::string>{{"who", "me"}}));
  EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path + "/made", run.model, &run.loader); }), "E0712");
}

TEST(Checkpoint, WhatItCannotDo) {
  Folder folder;
  Training run(7);
  EXPECT_EQ(codeOf([&] { saveCheckpoint(folder.path, run.model, 1); }), "E0705");
  run.trainTo(1);
  EXPECT_EQ(codeOf([&] { saveCheckpoint(folder.path, run.model, -1); }), "E0702");
  EXPECT_EQ(codeOf([&] { saveCheckpoint(folder.path, run.model, 1, nullptr, {.keep = -1}); }), "E0702");
  EXPECT_EQ(codeOf([&] { saveCheckpoint("/dev/null/folder", run.model, 1); }), "E0712");
}

// The checkpoint of one file, split as two processes write it: each has the tensors of its stages.
struct Parts {
  Parts(const std::string& folder, int64_t step) : stem(folder + "/step-000000000" + std::to_string(step)) {
    const std::string whole = bytesOf(stem + ".safetensors");
    uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof length);
    const auto header = nlohmann::ordered_json::parse(whole.substr(8, length));
    std::array<nlohmann::ordered_json, 2> headers;
    std::array<std::string, 2> data;
    for (const auto& [key, text] : header.at("__metadata__").items())
      if (key.starts_with("text/")) headers[0]["__metadata__"][key] = text;
    for (auto& own : headers) {
      own["__metadata__"]["abele.step"] = std::to_string(step);
      own["__metadata__"]["abele.set"] = "7";
    }
    nlohmann::ordered_json index = {{"metadata", {{"abele.set", "7"}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    size_t next = 0;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const size_t part = next++ % 2;
      const auto begin = entry.at("data_offsets")[0].get<size_t>(), end = entry.at("data_offsets")[1].get<size_t>();
      auto moved = entry;
      moved["data_offsets"] = {data[part].size(), data[part].size() + end - begin};
      headers[part][name] = moved;
      data[part] += whole.substr(8 + length + begin, end - begin);
      index["weight_map"][name] = fs::path(file(part)).filename().string();
    }
    for (size_t part = 0; part < 2; ++part) {
      const std::string text = headers[part].dump();
      length = text.size();
      put(file(part), std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data[part]);
    }
    put(stem + ".safetensors.index.json", index.dump());
    fs::remove(stem + ".safetensors");
  }
  std::string file(size_t part) const { return stem + "-7-0000" + std::to_string(part + 1) + "-of-00002.safetensors"; }
  std::string stem;
};

TEST(Checkpoint, ARunGoesOnFromTheParts) {
  Folder folder;
  Training whole(7), before(7), after(8), compiled(9);
  whole.trainTo(9);
  before.trainTo(4, folder.path);
  const Parts parts(folder.path, 4);
  compiled.trainTo(2);
  for (Training* run : {&after, &compiled}) {
    const auto resumed = loadCheckpoint(folder.path, run->model, &run->loader);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->path, parts.stem + ".safetensors.index.json");
    EXPECT_EQ(resumed->step, 4);
    run->step = 4;
    run->trainTo(9);
    expectSame(whole, *run, 4);
  }
}

TEST(Checkpoint, PartsThatDoNotBelongTogetherChangeNothing) {
  Folder folder;
  Training before(7), other(8);
  before.trainTo(4, folder.path);
  const Parts parts(folder.path, 4);
  other.trainTo(1);
  std::map<std::string, at::Tensor> held;
  for (const auto& [name, tensor] : other.model.stateDict()) held.emplace(name, tensor.clone());
  const auto expectRefused = [&](const std::string& code) {
    EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path, other.model, &other.loader); }), code);
    const auto after = other.model.stateDict();
    for (const auto& [name, tensor] : held) EXPECT_TRUE(torch::equal(tensor, after.at(name))) << name;
  };
  const std::string second = bytesOf(parts.file(1));
  std::string changed = second;
  changed.replace(changed.find(R"("abele.set":"7")"), 15, R"("abele.set":"8")");
  put(parts.file(1), changed);
  expectRefused("E0501");  // written at another time
  put(parts.file(1), second.substr(0, second.size() - 1));
  expectRefused("E0501");  // cut off
  put(parts.file(1), bytesOf(parts.file(0)));
  expectRefused("E0501");  // tensors of another part
  fs::remove(parts.file(1));
  expectRefused("E0712");  // gone
  put(parts.file(1), second);
  EXPECT_EQ(loadCheckpoint(folder.path, other.model, &other.loader)->step, 4);
  // A checkpoint of the same step in one file replaces the parts.
  saveCheckpoint(folder.path, other.model, 4, &other.loader);
  EXPECT_FALSE(fs::exists(parts.file(0)) || fs::exists(parts.stem + ".safetensors.index.json"));
  EXPECT_EQ(loadCheckpoint(folder.path, other.model, &other.loader)->path, parts.stem + ".safetensors");
}

TEST(Checkpoint, AnotherModelKeepsWhatItHas) {
  Folder folder;
  Training run(7);
  run.trainTo(2, folder.path);
  const auto expectKept = [&](Training& other, const std::string& code) {
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : other.model.stateDict()) before.emplace(name, tensor.clone());
    const at::Tensor random = other.model.isCompiled() ? other.model.rngState() : at::Tensor();
    EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path, other.model, &other.loader); }), code);
    const auto after = other.model.stateDict();
    for (const auto& [name, tensor] : before) EXPECT_TRUE(torch::equal(tensor, after.at(name))) << name;
    if (random.defined()) {
      EXPECT_TRUE(torch::equal(random, other.model.rngState()));
    }
    EXPECT_EQ(other.loader.position().batches, other.step);
  };
  Training wider(8, adam(), 5), fresh(8, sgd()), compiled(8, sgd());
  compiled.trainTo(1);
  expectKept(wider, "E0708");
  expectKept(fresh, "E0706");
  expectKept(compiled, "E0706");
}

TEST(Checkpoint, DamageIsFoundWhereverItIs) {
  Folder folder;
  const std::string path = folder.path + "/a.safetensors";
  saveTensors(path, {{"w", torch::randn({3, 5})}, {"n", torch::arange(7)}, {"empty", torch::empty({0, 2})}});
  const std::string whole = bytesOf(path);
  for (size_t i = 0; i < whole.size(); ++i)
    for (const int bit : {static_cast<int>(i % 8), 5}) {  // bit 5 turns a space into a zero, and changes case
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      put(path, bytes);
      ASSERT_EQ(codeOf([&] { loadTensors(path); }), "E0501") << "bit " << bit << " of byte " << i;
    }
  for (size_t size = 0; size < whole.size(); size += 3) {
    put(path, whole.substr(0, size));
    ASSERT_EQ(codeOf([&] { loadTensors(path); }), "E0501") << size << " bytes";
  }
  put(path, whole + "x");
  EXPECT_EQ(codeOf([&] { loadTensors(path); }), "E0501");
  EXPECT_EQ(codeOf([&] { loadTensors(folder.path + "/none"); }), "E0712");
}

TEST(Checkpoint, FilesOfTensorsThatOthersWrote) {
  Folder folder;
  const std::string path = folder.path + "/a.safetensors";
  const auto file = [](std::string header, const std::string& data) {
    std::string length(8, '\0');
    for (size_t i = 0; i < 4; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    return length + header + data;
  };
  // Writes a file without checksums whose header leaves the floats at an odd address.
  put(path,
      file(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})",
          std::string("\7\0\0\x80\x3f", 5)));
  const auto tensors = loadTensors(path);
  EXPECT_EQ(tensors.at("b").item<int>(), 7);
  EXPECT_EQ(tensors.at("f").item<float>(), 1.0f);
  for (const char* header : {
           R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",    // more bytes than the file has
           R"({"f":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",   //
           R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",    //
           R"({"f":{"dtype":"X32","shape":[1],"data_offsets":[0,4]}})",    //
           R"({"f":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",  //
           R"({"f":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",  // 2^64 elements
           R"({"f":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",                       // a hole
           R"({"f":{"dtype":"F32","data_offsets":[0,4]}})",                                  //
           R"({"f":7})",
           R"([])",
           R"({"f":)",
           R"({"__metadata__":{"a":1}})",
       }) {
    put(path, file(header, std::string(4, '\1')));
    EXPECT_EQ(codeOf([&] { loadTensors(path); }), "E0501") << header;
  }
  // The value is nested so deeply that no message may print it.
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const auto around = [&](const char* before, const char* behind) { return before + deep + behind; };
  for (const std::string& header : {
           deep,
           around(R"({"f":{"dtype":"F32","shape":[)", R"(],"data_offsets":[0,4]}})"),
           around(R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[)", ",4]}}"),
           around(R"({"f":{"dtype":)", R"(,"shape":[1],"data_offsets":[0,4]}})"),
           around(R"({"__metadata__":{"a":)", "}}"),
       }) {
    put(path, file(header, std::string(4, '\1')));
    EXPECT_EQ(codeOf([&] { loadTensors(path); }), "E0501");
  }
  Training training(1);
  for (const std::string& index : {deep, around(R"({"weight_map":{"f":)", "}}"), around(R"({"metadata":)", "}")}) {
    put(path + ".json", index);
    EXPECT_EQ(codeOf([&] { loadWeights(path + ".json", training.model); }), "E0501");
  }
  EXPECT_EQ(codeOf([&] { saveTensors(path, {{"m", torch::empty({2}, torch::kMeta)}}); }), "E0712");
  EXPECT_EQ(codeOf([&] { saveTensors(path, {{"m", at::Tensor()}}); }), "E0712");
}

TEST(Checkpoint, FilesOfTensorsHoldValuesThatAreMadeWhenTheyAreRead) {
  Folder folder;
  const std::string path = folder.path + "/a.safetensors";
  const at::Tensor conjugate = torch::complex(torch::arange(3.0f), torch::arange(1.0f, 4.0f)).conj();
  saveTensors(path, {{"conjugate", conjugate}, {"negative", at::imag(conjugate)}});
  const auto tensors = loadTensors(path);
  EXPECT_TRUE(torch::equal(tensors.at("conjugate"), conjugate));
  EXPECT_TRUE(torch::equal(tensors.at("negative"), -torch::arange(1.0f, 4.0f)));
}

TEST(Checkpoint, NamesAndNotesAreTexts) {
  Folder folder;
  const std::string path = folder.path + "/a.safetensors";
  saveTensors(path, {{std::string("a\0\n\xc3\xa4", 5), torch::ones({1})}});
  EXPECT_EQ(loadTensors(path).begin()->first, std::string("a\0\n\xc3\xa4", 5));
  EXPECT_EQ(codeOf([&] { saveTensors(path, {{"\xff", torch::ones({1})}}); }), "E0712");
  EXPECT_EQ(loadTensors(path).size(), 1u);
  Training training(1);
  training.trainTo(1);
  const CheckpointOptions noted{.notes = {{"name", "\xc3"}}};
  EXPECT_EQ(codeOf([&] { saveCheckpoint(folder.path, training.model, 1, nullptr, noted); }), "E0712");
}

TEST(Checkpoint, FoldersThatAreNone) {
  Folder folder;
  Training training(1);
  EXPECT_FALSE(loadCheckpoint(folder.path + "/none", training.model));
  put(folder.path + "/file", "");
  EXPECT_EQ(codeOf([&] { loadCheckpoint(folder.path + "/file", training.model); }), "E0712");  // not a fresh start
}

TEST(Checkpoint, SaysWhichOfTorchsFormulasUpdates) {
  Folder folder;
  const optim::Optimizer fused = optim::AdamW{.lr = 0.05, .fused = true};
  Training whole(7, fused), before(7, fused), after(8), other(7);
  whole.trainTo(9);
  other.trainTo(9);
  EXPECT_NE(whole.losses, other.losses);
  before.trainTo(4, folder.path);
  ASSERT_TRUE(loadCheckpoint(folder.path, after.model, &after.loader));
  after.step = 4;
  after.trainTo(9);
  expectSame(whole, after, 4);
}

TEST(Checkpoint, FormulasAreThoseOfTheModelThatGoesOn) {
  Folder folder;
  const optim::Optimizer python = optim::AdamW{.lr = 0.05}, libtorch = optim::AdamW{.lr = 0.05, .libtorch = true};
  Training whole(7, libtorch), before(7, libtorch), after(8, libtorch), other(8, python);
  whole.trainTo(9);
  before.trainTo(4, folder.path);
  for (Training* each : {&after, &other}) {
    ASSERT_TRUE(loadCheckpoint(folder.path, each->model, &each->loader));
    each->step = 4;
    each->trainTo(9);
  }
  expectSame(whole, after, 4);
  const auto states = other.model.optimizerState(), same = after.model.optimizerState();
  EXPECT_FALSE(torch::equal(states.begin()->second, same.begin()->second)) << "rounded as LibTorch does";
}

}  // namespace abele::test::checkpoint_test
