// make_programs FOLDER: saved models FOLDER/program_file/*.poptorch, and compiled programs FOLDER/cache_entry/*.abx, as
// this version writes them: small ones of several kinds. make_programs --fields FOLDER: their fields alone, which the
// fuzzers take.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "abele/abele.h"
#include "base/error.h"
#include "base/whole_file.h"
#include "files/program_file.h"
#include "sealed_program.h"

namespace abele::test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;

/// Where the files of one run go.
class Folder {
 public:
  Folder(fs::path path, bool fields_only) : path_(std::move(path)), fields_only_(fields_only) {
    std::string name = fs::temp_directory_path() / "abele_programs_XXXXXX";
    ABELE_CHECK(::mkdtemp(name.data()), "no temporary folder");
    temporary_ = name;
    for (const char* kind : {"program_file", "cache_entry"}) fs::create_directories(path_ / kind);
  }
  ~Folder() { fs::remove_all(temporary_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  Options options() const {
    Options options;
    options.threadsPerDevice(1).randomSeed(5).enableExecutableCaching((temporary_ / "cache").string());
    return options;
  }
  /// The compiled model, and the entry that its compilation left in the cache. Without the state of the random stream,
  /// which is large.
  files::ProgramFile take(const std::string& name, CompiledModel& model) const {
    const std::string saved = temporary_ / "saved";
    model.save(saved);
    files::ProgramFile file = files::readProgramFile(saved);
    const at::Tensor rng_state = std::exchange(file.rng_state, at::Tensor());
    file.options = R"({"randomSeed": 5, "threadsPerDevice": 1})";  // no folder here
    write("program_file", name, ".poptorch", files::encode(file));
    for (const auto& entry : fs::directory_iterator(temporary_ / "cache")) {
      write("cache_entry", name, ".abx", readWholeFile(entry.path()));
      fs::remove(entry.path());
    }
    file.rng_state = rng_state;
    return file;
  }
  void write(const char* kind, const std::string& name, const char* suffix, const std::string& file) const {
    if (fields_only_)
      writeWholeFile(path_ / kind / name, fieldsOf(file));
    else
      writeWholeFile(path_ / kind / (name + suffix), file);
  }

 private:
  fs::path path_, temporary_;
  bool fields_only_;
};

struct WeightImpl : nn::Module {
  explicit WeightImpl(at::Tensor value) {
    weight = register_parameter("weight", value);
    calls = register_buffer("calls", torch::zeros({}));
  }
  at::Tensor weight, calls;
};
TORCH_MODULE(Weight);

/// A weight, a buffer, the optimizer's state, random numbers; two stages.
files::ProgramFile training(const Folder& folder) {
  Weight net(torch::ones({2}));
  Options options = folder.options();
  options.Training().gradientAccumulation(2);
  auto model = trainingModel(
      net,
      [net](at::Tensor x) mutable {
        Block::start("first", 0);
        net->calls.add_(1);
        const at::Tensor h = x * net->weight;
        Block::start("second", 1);
        return identityLoss(torch::dropout(h, 0.5, /*train=*/true), Reduction::kSum);
      },
      options, optim::Adam{.lr = 0.01});
  model(torch::ones({2, 2}));
  return folder.take("training_adam", model);
}

/// Structures of arguments and results, a constant, a result that the device does not make.
void inference(const Folder& folder) {
  using Map = std::map<std::string, at::Tensor>;
  auto model = inferenceModel(
      [](const Map& in, std::pair<at::Tensor, int64_t> two, std::optional<at::Tensor>) mutable {
        const at::Tensor out = (in.at("x") + in.at("y")) * torch::tensor({1.0F, 2.0F});
        return std::make_tuple(Map{{"out", out}, {"first", two.first}}, std::vector<at::Tensor>{torch::ones({2})});
      },
      folder.options());
  const at::Tensor x = torch::ones({2, 2});
  model(Map{{"x", x}, {"y", x}}, std::make_pair(x, int64_t{3}), std::optional<at::Tensor>());
  folder.take("inference_structures", model);
}

/// A weight of its own for each of two replicas, an anchor, results of every second micro-batch.
void replicas(const Folder& folder) {
  Weight net(torch::ones({2, 2}));
  std::string anchored;
  const auto train = [&](const Options& options, const std::string& name) {
    auto model = trainingModel(
        net, [net](at::Tensor x) mutable { return identityLoss(x * net->weight, Reduction::kSum); }, options,
        optim::SGD{.lr = 0.1, .momentum = 0.9});
    model.replicaGrouping("weight", CommGroupType::kNoGrouping, 1);
    model(torch::ones({4, 2}));
    anchored = model.getTensorNames().at(0);
    folder.take(name, model);
  };
  const auto options = [&] { return folder.options().replicationFactor(2).deviceIterations(2); };
  train(options(), "training_sgd_replicas");
  train(options().anchorTensor("value", anchored, OutputMode::kEveryN, 2), "training_sgd_anchor");
}

int make(const std::string& path, bool fields_only) {
  const Folder folder(path, fields_only);
  inference(folder);
  replicas(folder);
  files::ProgramFile file = training(folder);
  // As Python writes them.
  file.metadata = "\x80\x05}.";
  file.objects = "\x80\x05N.";
  folder.write("program_file", "training_random_state", ".poptorch", files::encode(file));
  file.has_model = false;
  file.objects.clear();
  file.tensors.clear();
  file.optimizer_state.clear();
  file.rng_state = at::Tensor();
  folder.write("program_file", "training_without_model", ".poptorch", files::encode(file));
  return 0;
}

}  // namespace
}  // namespace abele::test

int main(int argc, char** argv) {
  const bool fields_only = argc == 3 && std::string_view(argv[1]) == "--fields";
  if (argc != 2 && !fields_only) return std::fputs("make_programs [--fields] FOLDER\n", stderr), 2;
  return abele::test::make(argv[argc - 1], fields_only);
}
