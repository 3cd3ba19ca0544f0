#include "runtime/collective/peers.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "runtime/collective/gloo.h"

namespace abele::runtime {
namespace {

constexpr int kTag = 1, kAcknowledgement = 2;
constexpr auto kPatience = std::chrono::seconds(5);  // when this process leaves
constexpr char kFailed[] = "failed";                 // key in the group's store: who was the first to fail, and why
constexpr char kRestart[] = "start all processes again, from the last checkpoint";

// What c10d says, without the place in its sources and the advice.
std::string shortened(std::string text) {
  text = text.substr(0, text.find('\n'));
  text = text.substr(0, text.find(". This is"));
  const size_t place = text.starts_with("[/") ? text.find("] ") : std::string::npos;
  return place == std::string::npos ? text : text.substr(place + 2);
}

class C10dPeers final : public Peers {
 public:
  explicit C10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)),
        backend_(group_->getBackend(c10::DeviceType::CPU)),
        process_(group_->getRank()),
        processes_(group_->getSize()) {}

  int64_t process() const override { return process_; }
  int64_t processes() const override { return processes_; }

  // Waits for what comes back: Gloo notices that the other side is gone where it receives, and not always where it
  // sends.
  void send(const at::Tensor& bytes, int64_t to) override {
    requireOpen();
    const int peer = static_cast<int>(to);
    std::vector<at::Tensor> list{bytes}, answer{at::empty({1}, at::kByte)};
    attempt(to, [&] {
      const Transfer answered = backend_->recv(answer, peer, kAcknowledgement);
      const Transfer sent = backend_->send(list, peer, kTag);
      return wait(answered) && wait(sent);
    });
  }

  void receive(const at::Tensor& bytes, int64_t from) override {
    requireOpen();
    const int peer = static_cast<int>(from);
    std::vector<at::Tensor> list{bytes};
    attempt(from, [&] {
      if (!wait(backend_->recv(list, peer, kTag))) return false;
      // Not waited for: the other side has it, or is gone and nobody needs it.
      acknowledged_[peer] = backend_->send(acknowledgement_, peer, kAcknowledgement);
      return true;
    });
  }

  // Pairs meet in the order of the lower process, then of the higher: nobody waits in a circle.
  std::vector<std::string> exchange(const std::string& own) override {
    std::vector<std::string> all(static_cast<size_t>(processes_), own);
    const auto length = static_cast<int64_t>(own.size());
    at::Tensor out = at::empty({length}, at::kByte), in = at::empty({length}, at::kByte);
    std::copy(own.begin(), own.end(), out.mutable_data_ptr<uint8_t>());
    for (int64_t other = 0; other < processes_; ++other) {
      if (other == process_) continue;
      if (process_ < other) send(out, other);
      receive(in, other);
      if (process_ > other) send(out, other);
      const auto* text = in.const_data_ptr<uint8_t>();
      all[static_cast<size_t>(other)].assign(text, text + length);
    }
    return all;
  }

  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (pending_) stop(*pending_);
  }

  void begin() override {
    requireOpen();
    const std::lock_guard lock(mutex_);
    interrupted_ = false;
  }

  // In a forked child the connections are the parent's, and their threads are not there to be ended.
  ~C10dPeers() override {
    if (!home_.isHere()) abandon();
  }

  void fail(const std::string& why) override {
    if (!isOpen()) return;
    leave(noteFailure(cat("process ", process_, ": ", why)));
  }

  void leave(const std::string& why) {
    broken_ = why;
    if (!home_.isHere()) return abandon();
    flush();
    backend_.reset();
    group_.reset();
  }

  bool isOpen() const { return group_ != nullptr && home_.isHere(); }
  void requireOpen() const {
    ABELE_REQUIRE(home_.isHere(), E0607,
                  {.what = "this process was forked off from one of a group, and is none of them",
                   .found = "connections that are the parent's",
                   .remedy = "let the launcher start all processes of the training"});
    if (!isOpen())
      throwDevice(ErrorCode::E0606, {.what = "the processes are out of step", .found = broken_, .remedy = kRestart});
  }

 private:
  // The last that others wait for has to be on its way before connections are closed.
  void flush() {
    for (const auto& [process, transfer] : acknowledged_) {
      try {
        transfer->wait(kPatience);
      } catch (const std::exception& error) {  // the other side is gone, and nobody needs it
        log::debug("process ", process, " did not take the last message: ", shortened(error.what()));
      }
    }
    acknowledged_.clear();
  }

  void abandon() {
    for (auto& [process, transfer] : acknowledged_) static_cast<void>(transfer.release());
    acknowledged_.clear();
    static_cast<void>(backend_.release());
    static_cast<void>(group_.release());
  }

  static void stop(c10d::Work& work) {
    try {
      work.abort();
    } catch (const std::exception& error) {
      log::warn("a transfer between processes cannot be interrupted: ", shortened(error.what()));
    }
  }

  using Transfer = c10::intrusive_ptr<c10d::Work>;

  // False when it was interrupted.
  bool wait(const Transfer& transfer) {
    setPending(transfer.get());
    const bool done = transfer->wait();
    setPending(nullptr);
    return done;
  }

  template <class Transfers>
  void attempt(int64_t peer, Transfers&& transfers) {
    bool done = false;
    try {
      done = transfers();
    } catch (const std::exception& error) {
      setPending(nullptr);
      throwLost(peer, shortened(error.what()));
    }
    if (!done) throwUser(ErrorCode::E0602, {.what = "a transfer between processes was interrupted"});
  }

  void setPending(c10d::Work* work) {
    const std::lock_guard lock(mutex_);
    pending_ = work;
    if (work && interrupted_) stop(*work);
  }

  [[noreturn]] void throwLost(int64_t peer, const std::string& error) {
    const bool is_late = error.find("imed out") != std::string::npos;
    const std::string seen = cat("process ", peer, is_late ? " did not answer in time" : " ended or cannot be reached",
                                 ", seen by process ", process_);
    const std::string first = noteFailure(seen);
    leave(first);
    throwDevice(ErrorCode::E0606,
                {.what = first == seen ? cat("process ", peer,
                                             is_late ? " did not answer in time" : " ended or cannot be reached")
                                       : "another process failed",
                 .at = cat("process ", process_, " of ", processes_),
                 .found = first == seen ? error : first,
                 .remedy = kRestart});
  }

  // What the store holds then: the first failure. The store may be gone with the process that held it.
  std::string noteFailure(const std::string& text) noexcept {
    try {
      const auto store = group_->getStore();
      if (!store) return text;
      if (!store->check({kFailed})) store->set(kFailed, std::vector<uint8_t>(text.begin(), text.end()));
      const std::vector<uint8_t> first = store->get(kFailed);
      return {first.begin(), first.end()};
    } catch (const std::exception&) {
      return text;
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;  // null once this process left
  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t process_, processes_;
  const Home home_;
  std::vector<at::Tensor> acknowledgement_{at::empty({1}, at::kByte)};
  std::map<int, c10::intrusive_ptr<c10d::Work>> acknowledged_;  // by process; the last one
  std::string broken_;                                          // why it left
  std::mutex mutex_;
  c10d::Work* pending_ = nullptr;  // guarded by mutex_, like all below
  bool interrupted_ = false;
};

// Groups of this process by name. Never destroyed: what uses them may outlive static objects.
struct Joined {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<C10dPeers>> by_name;
};
Joined& joined() {
  static Joined* all = new Joined;
  return *all;
}

c10::intrusive_ptr<c10d::ProcessGroup> takeRegistered(const std::string& name) {
  try {
    auto group = c10d::resolve_process_group(name);
    c10d::unregister_process_group(name);
    return group;
  } catch (const std::exception&) {
    return {};  // there is none
  }
}

}  // namespace

std::shared_ptr<Peers> Peers::join(const std::string& name, int64_t process, int64_t processes) {
  const std::lock_guard lock(joined().mutex);
  std::shared_ptr<C10dPeers>& peers = joined().by_name[name];
  if (!peers || !peers->isOpen()) {
    auto group = takeRegistered(name);
    if (!group && !peers) group = connectProcesses(name, process, processes);
    if (group) peers = std::make_shared<C10dPeers>(std::move(group));
    // A program in C++ has nobody else who says good-bye.
    static const int at_the_end = std::atexit(leaveAll);
    static_cast<void>(at_the_end);
  }
  peers->requireOpen();
  ABELE_REQUIRE(peers->process() == process && peers->processes() == processes, E0714,
                {.what = cat("this is process ", process, " of ", processes, ", and another one in its process group"),
                 .found = cat("process ", peers->process(), " of ", peers->processes()),
                 .remedy = "give opts.Distributed the numbers that the launcher gave"});
  return peers;
}

void Peers::leaveAll() {
  const std::lock_guard lock(joined().mutex);
  for (auto& [name, peers] : joined().by_name)
    if (peers) peers->leave("this process left its group");
}

}  // namespace abele::runtime
