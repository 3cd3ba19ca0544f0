// Several processes of a C++ program, in their own process group. Threads act as the processes.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <thread>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../../support/code_of.h"
#include "base/error.h"
#include "networks.h"

namespace abele::test {
namespace {

// Messages between two threads.
struct Mail {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::tuple<int, int, int>, std::deque<at::Tensor>> messages;  // from, to, tag
  bool closed = false;
};

class MailWork : public c10d::Work {
 public:
  explicit MailWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    finish_();
    return true;
  }

 private:
  std::function<void()> finish_;
};

class MailBackend : public c10d::Backend {
 public:
  MailBackend(std::shared_ptr<Mail> mail, int rank, int size) : Backend(rank, size), mail_(std::move(mail)) {}
  ~MailBackend() override {
    const std::lock_guard lock(mail_->mutex);
    mail_->closed = true;
    mail_->arrived.notify_all();
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const std::lock_guard lock(mail_->mutex);
    mail_->messages[{getRank(), to, tag}].push_back(tensors[0].clone());
    mail_->arrived.notify_all();
    return c10::make_intrusive<MailWork>([] {});
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return c10::make_intrusive<MailWork>([mail = mail_, into = tensors[0], key = std::tuple(from, getRank(), tag)] {
      std::unique_lock lock(mail->mutex);
      auto& waiting = mail->messages[key];
      mail->arrived.wait(lock, [&] { return mail->closed || !waiting.empty(); });
      if (waiting.empty()) throw std::runtime_error("connection closed");
      into.copy_(waiting.front());
      waiting.pop_front();
    });
  }

 private:
  std::shared_ptr<Mail> mail_;
};

compile::ProgramOptions options(int64_t replicas) {
  compile::ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = 2;
  options.replicas = replicas;
  options.threads_per_device = 1;
  options.has_seed = true;
  options.seed = 4;
  return options;
}

struct TrainedInProcess {
  TrainedInProcess(const std::string& name, compile::ProgramOptions chosen)
      : network(makeNetwork(name, 2)), view(*network), session(std::move(chosen)) {}
  void train(const Tensors& data) {
    const compile::OptimizerSpec optimizer = specFor(*network, optim::Adam{.lr = 0.01});
    session.compile(view.program, data, optimizer);
    for (int i = 0; i < 3; ++i) session.run(data);
    session.copyWeightsToHost();
  }

  std::shared_ptr<Network> network;
  ModelView view;
  session::Session session;
};

// The micro-batches of one process, from data in the order [micro-batch, process].
Tensors shareOf(const Tensors& data, int64_t process, int64_t processes) {
  Tensors share;
  for (const at::Tensor& whole : data) {
    std::vector<int64_t> sizes = whole.sizes().vec();
    sizes[0] /= 2 * processes;
    std::vector<int64_t> split{2, processes};
    split.insert(split.end(), sizes.begin(), sizes.end());
    share.push_back(whole.view(split).select(1, process).flatten(0, 1).contiguous());
  }
  return share;
}

// Runs two sessions as two processes. what: the network of each.
struct Pair {
  Pair(const std::string& group, const std::vector<std::string>& what) {
    auto mail = std::make_shared<Mail>();
    for (int rank = 0; rank < 2; ++rank) {
      compile::ProgramOptions own = options(1);
      own.processes = {.index = rank, .count = 2, .group = group + std::to_string(rank)};
      auto joint = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), rank, 2);
      joint->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                        c10::make_intrusive<MailBackend>(mail, rank, 2));
      c10d::register_process_group(own.processes.group, joint);
      groups.push_back(std::move(joint));
      trained.push_back(std::make_unique<TrainedInProcess>(what[rank], own));
    }
  }

  std::vector<std::string> train(const Tensors& data) {
    std::vector<std::string> codes(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] { codes[rank] = codeOf([&] { trained[rank]->train(shareOf(data, rank, 2)); }); });
    for (std::thread& thread : threads) thread.join();
    return codes;
  }

  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups;
  std::vector<std::unique_ptr<TrainedInProcess>> trained;
};

Tensors sampleOf(const std::string& name) {
  torch::manual_seed(17);
  return makeNetwork(name, 2)->sample(16);
}

TEST(Processes, EqualOneProcessWithAllReplicas) {
  for (const std::string name : {"mlp", "dropout"}) {
    const Tensors data = sampleOf(name);
    TrainedInProcess alone(name, options(2));
    alone.train(data);
    Pair pair("equal_" + name, {name, name});
    EXPECT_EQ(pair.train(data), (std::vector<std::string>{"", ""}));
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_EQ(firstDifference(*pair.trained[rank]->network, *alone.network), "") << name << " " << rank;
  }
}

TEST(Processes, ProgramsThatDifferAreAnErrorInAll) {
  Pair pair("differ", {"mlp", "dropout"});
  EXPECT_EQ(pair.train(sampleOf("mlp")), (std::vector<std::string>{"E0713", "E0713"}));
}

TEST(Processes, NeedAGroup) {
  compile::ProgramOptions lonely = options(1);
  lonely.processes = {.index = 0, .count = 2, .group = "nobody_registered_this"};
  TrainedInProcess trained("mlp", lonely);
  EXPECT_EQ(codeOf([&] { trained.train(shareOf(sampleOf("mlp"), 0, 2)); }), "E0714");
}

TEST(Processes, RefuseWhatIsOfOneProcessOnly) {
  const auto codeWith = [](auto change) {
    compile::ProgramOptions chosen = options(2);
    chosen.processes = {.index = 0, .count = 2};
    change(chosen);
    return codeOf([&] { session::Session session(chosen); });
  };
  EXPECT_EQ(codeWith([](compile::ProgramOptions& o) { o.groupings = {{"a", compile::CommGroup::kNone}}; }), "E0711");
  EXPECT_EQ(codeWith([](compile::ProgramOptions& o) { o.processes.index = 2; }), "E0702");
  EXPECT_EQ(codeWith([](compile::ProgramOptions&) {}), "");
}

}  // namespace
}  // namespace abele::test
