#include "collective/peers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "collective/device_links.h"
#include "collective/first_failure.h"
#include "collective/gloo.h"
#include "collective/heartbeat.h"
#include "collective/shared_links.h"

namespace abele::collective {
namespace {

constexpr int kTag = 1, kAcknowledgement = 2, kNote = 3, kBeat = 4, kTrade = 5, kFirstLink = 16;
constexpr auto kLeavingPatience = std::chrono::seconds(5);  // for last messages, when this process leaves
constexpr auto kFarewell = std::chrono::milliseconds(500);  // short, because the next process may have stopped
constexpr auto kAsLongAsItTakes = std::chrono::hours(24 * 365);
constexpr uint8_t kIsThere = 0, kHasEnded = 1;  // contents of a beat
constexpr int64_t kSilence = 30;                // seconds
constexpr char kRestart[] = "start all processes again, from the last checkpoint";

// c10d's error text, without the place in its sources and the advice.
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
        processes_(group_->getSize()) {
    const int64_t silence = environmentInteger("ABELE_PEER_SILENCE", kSilence);
    if (silence <= 0 || processes_ < 2) return;
    const int64_t next = (process_ + 1) % processes_, previous = (process_ + processes_ - 1) % processes_;
    heartbeat_ = std::make_unique<Heartbeat>(
        Heartbeat::Calls{.tell = [this, next] { return tell(next, kIsThere, kAsLongAsItTakes); },
                         .hear = [this, previous] { return hear(previous); },
                         .lost = [this, previous, silence] { miss(previous, silence); }},
        silence);
  }

  int64_t process() const override { return process_; }
  int64_t processes() const override { return processes_; }

  // Waits for an acknowledgement: Gloo notices a lost connection when it receives, but not always when it sends.
  void send(const at::Tensor& bytes, int64_t to) override {
    const Connection connection = open();
    sent_bytes_ += static_cast<int64_t>(bytes.nbytes());
    const int peer = static_cast<int>(to);
    std::vector<at::Tensor> list{bytes}, answer{at::empty({1}, at::kByte)};
    attempt(to, [&] {
      const Transfer answered = connection->recv(answer, peer, kAcknowledgement);
      const Transfer sent = connection->send(list, peer, kTag);
      return wait(answered) && wait(sent);
    });
  }

  void receive(const at::Tensor& bytes, int64_t from) override {
    const Connection connection = open();
    const int peer = static_cast<int>(from);
    std::vector<at::Tensor> list{bytes};
    attempt(from, [&] {
      if (!wait(connection->recv(list, peer, kTag))) return false;
      // Not waited for: either the other side has the message, or it is gone and needs none.
      Transfer sent = connection->send(acknowledgement_, peer, kAcknowledgement);
      const std::lock_guard lock(mutex_);
      acknowledged_[peer].swap(sent);
      return true;
    });
  }

  // Starts all messages before it waits for any.
  void trade(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    const Connection connection = open();
    std::vector<Traded> traded;
    const auto add = [&](const std::vector<at::Tensor>& tensors, bool sends) {
      for (int64_t other = 0; other < processes_; ++other) {
        const at::Tensor& bytes = tensors.at(static_cast<size_t>(other));
        if (other == process_ || !bytes.defined()) continue;
        if (sends) sent_bytes_ += static_cast<int64_t>(bytes.nbytes());
        Traded& message = traded.emplace_back(Traded{other, {bytes}});
        const int peer = static_cast<int>(other);
        attempt(other, [&] {
          message.transfer =
              sends ? connection->send(message.list, peer, kTrade) : connection->recv(message.list, peer, kTrade);
          return true;
        });
      }
    };
    add(in, /*sends=*/false);
    add(out, /*sends=*/true);
    for (const Traded& message : traded) attempt(message.process, [&] { return wait(message.transfer); });
  }

  // Needs no acknowledgement, because every step ends with messages that have one.
  void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) override {
    requireOpen();
    sent_bytes_ += static_cast<int64_t>(bytes.nbytes());
    if (!bytes.is_cpu()) return byDevice({link, to, bytes.device()}, bytes, /*sends=*/true);
    if (const auto shared = sharedAt({link, to, /*sends=*/true}, bytes.nbytes()))
      return through(to, shared->send(bytes.const_data_ptr(), bytes.nbytes(), [this] { return isStopped(); }));
    byGroup(link, bytes, to, /*sends=*/true);
  }

  void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) override {
    requireOpen();
    if (!bytes.is_cpu()) return byDevice({link, from, bytes.device()}, bytes, /*sends=*/false);
    if (const auto shared = sharedAt({link, from, /*sends=*/false}, bytes.nbytes()))
      return through(from, shared->receive(bytes.mutable_data_ptr(), bytes.nbytes(), [this] { return isStopped(); }));
    byGroup(link, bytes, from, /*sends=*/false);
  }

  bool takesDevice(int64_t link, int64_t other, c10::Device device) const override {
    return device_links_.at({link, other, device}) != nullptr;
  }

  void connectDevices(const std::vector<DeviceLink>& links, int64_t stages) override {
    ABELE_REQUIRE(
        heartbeat_, E0702,
        {.what = "ABELE_HANDOVER=device with ABELE_PEER_SILENCE=0",
         .expected = "processes that notice when another one has ended; otherwise devices wait for it forever",
         .remedy = "leave one of the two variables out"});
    requireOpen();
    try {
      device_links_.connect(*this, links, stages);
    } catch (const UserError& error) {
      fail(error.message().what + ": " + error.message().found);
      throw;
    }
  }

  // Notes go to all processes at once. They are small enough to leave within the call.
  void announce(const std::string& own) override {
    ABELE_CHECK(own.size() == kNoteBytes, "a note of ", own.size(), " bytes");
    const Connection connection = open();
    own_note_ = own;
    std::vector<Note> notes;
    for (int64_t other = 0; other < processes_; ++other) {
      if (other == process_) continue;
      Note& note = notes.emplace_back(Note{other, {bytesOf(std::string(kNoteBytes, ' '))}, {bytesOf(own)}});
      const int peer = static_cast<int>(other);
      attempt(other, [&] {
        note.sent = connection->send(note.out, peer, kNote);
        note.received = connection->recv(note.in, peer, kNote);
        return true;
      });
    }
    const std::lock_guard lock(mutex_);
    notes_ = std::move(notes);
  }

  std::vector<std::string> announced() override {
    requireOpen();
    std::vector<Note> notes;
    {
      const std::lock_guard lock(mutex_);
      notes.swap(notes_);
    }
    std::vector<std::string> all(static_cast<size_t>(processes_), own_note_);
    for (const Note& note : notes) {
      attempt(note.process, [&] { return wait(note.received) && wait(note.sent); });
      const auto* text = note.in[0].const_data_ptr<uint8_t>();
      all[static_cast<size_t>(note.process)].assign(text, text + kNoteBytes);
    }
    return all;
  }

  void agree() override {
    {
      const std::lock_guard lock(mutex_);
      if (interrupted_) throwInterrupted();  // no other process knows yet that this one is ready
      is_ready_ = true;
    }
    const std::string ready(kNoteBytes, '.');
    announce(ready);
    for (const std::string& text : announced()) ABELE_CHECK(text == ready, "a process at another place: ", text);
    const std::lock_guard lock(mutex_);
    agreed_ = true;
    interrupted_ = false;
  }

  void interrupt() override {
    {
      const std::lock_guard lock(mutex_);
      if (agreed_) return;
      interrupted_ = true;
      stopAll();
      if (is_ready_) return;  // the devices are done with the step, so their links stay
    }
    device_links_.abort();
  }

  void begin() override {
    requireOpen();
    const std::lock_guard lock(mutex_);
    interrupted_ = is_ready_ = agreed_ = false;
  }

  int64_t sentBytes() const override { return sent_bytes_; }

  // In a forked child the connections are the parent's, and the threads do not exist.
  ~C10dPeers() override {
    if (!home_.isHere()) abandon();
  }

  void fail(const std::string& why) override {
    if (!isOpen()) return;
    leave(noteFailure(cat("process ", process_, ": ", why)));
  }

  // Other threads that wait for messages give up. Each keeps its connection alive until it has given up.
  void leave(const std::string& why) {
    if (!home_.isHere()) return abandon();
    Connection backend;
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    std::vector<Note> notes;
    Acknowledgements acknowledged;  // taken by the first of the threads that leave
    {
      const std::lock_guard lock(mutex_);
      if (group_) broken_ = why;
      backend.swap(backend_);
      group.swap(group_);
      notes.swap(notes_);
      acknowledged.swap(acknowledged_);
      stopAll();
      for (c10d::Work* work : beats_) stop(*work);
    }
    device_links_.abort();
    if (heartbeat_) heartbeat_->end();
    links_.closeAll();
    flush(acknowledged);
  }
  /// Called before leave() if nothing has failed, so that the next process need not ask the store why this one left.
  /// The store may be gone as well, and torch.distributed would write a warning about that.
  void sayGoodbye() {
    if (heartbeat_ && isOpen()) tell((process_ + 1) % processes_, kHasEnded, kFarewell);
  }
  /// Called after leave(): waits for the threads that send and hear beats.
  void joinHeartbeat() {
    if (heartbeat_ && home_.isHere()) heartbeat_->join();
  }

  bool isOpen() const {
    if (!home_.isHere()) return false;
    const std::lock_guard lock(mutex_);
    return group_ != nullptr;
  }
  void requireOpen() const { static_cast<void>(open()); }

 private:
  using Connection = c10::intrusive_ptr<c10d::Backend>;
  using Acknowledgements = std::map<int, c10::intrusive_ptr<c10d::Work>>;  // process -> the last acknowledgement

  void byGroup(int64_t link, const at::Tensor& bytes, int64_t other, bool sends) {
    const Connection connection = open();
    std::vector<at::Tensor> list{bytes};
    const int peer = static_cast<int>(other), tag = kFirstLink + static_cast<int>(link);
    attempt(other, [&] { return wait(sends ? connection->send(list, peer, tag) : connection->recv(list, peer, tag)); });
  }

  // Null if the link's messages go through the process group.
  std::shared_ptr<SharedChannel> sharedAt(const SharedLinks::End& end, size_t message_bytes) {
    const auto tell = [&](const std::string& text) { byGroup(end.link, bytesOf(text), end.process, /*sends=*/true); };
    const auto hear = [&] {
      const at::Tensor bytes = bytesOf(std::string(SharedChannel::kOfferBytes, ' '));
      byGroup(end.link, bytes, end.process, /*sends=*/false);
      const auto* text = bytes.const_data_ptr<uint8_t>();
      return std::string(text, text + bytes.numel());
    };
    return links_.at(end, message_bytes, tell, hear);
  }

  // Enqueues on the device's current stream. The host waits for the other process only if the backend cannot avoid it.
  void byDevice(const DeviceLinks::End& end, const at::Tensor& bytes, bool sends) {
    const DeviceLinks::Communicator communicator = device_links_.at(end);
    ABELE_CHECK(communicator, "link ", end.link, " does not take memory of ", end.device.str());
    std::vector<at::Tensor> list{bytes};
    const int other = DeviceLinks::otherOf(*communicator);
    attempt(end.other, [&] {
      try {
        return !isStopped() && wait(sends ? communicator->send(list, other, 0) : communicator->recv(list, other, 0));
      } catch (const std::exception&) {
        if (isStopped()) return false;  // stopped while the call was running
        throw;
      }
    });
  }

  void through(int64_t peer, SharedChannel::Outcome outcome) {
    if (outcome == SharedChannel::Outcome::kLost) throwLost(peer, "it has ended, or left");
    if (outcome == SharedChannel::Outcome::kDone) return;
    requireOpen();  // throws if another thread has learned of a failure
    throwInterrupted();
  }

  bool isStopped() const {
    const std::lock_guard lock(mutex_);
    return interrupted_ || !group_;
  }

  Connection open() const {
    ABELE_REQUIRE(home_.isHere(), E0607,
                  {.what = "this process was forked from a member of the group, and is not a member itself",
                   .found = "connections of the parent process",
                   .remedy = "let the launcher start all processes of the training"});
    const std::lock_guard lock(mutex_);
    if (!backend_)
      throwDevice(ErrorCode::E0606,
                  {.what = "the processes do not run the same steps", .found = broken_, .remedy = kRestart});
    return backend_;
  }

  // Other processes wait for the last acknowledgements, so these must leave before connections are closed.
  static void flush(const Acknowledgements& acknowledged) {
    for (const auto& [process, transfer] : acknowledged) {
      try {
        transfer->wait(kLeavingPatience);
      } catch (const std::exception& error) {  // the other side is gone and needs nothing
        log::debug("process ", process, " did not take the last message: ", shortened(error.what()));
      }
    }
  }

  // Runs on one thread of the heartbeat; hear() runs on another. Returns false once this process or the other one has
  // left.
  bool tell(int64_t next, uint8_t what, std::chrono::milliseconds patience) {
    try {
      const Connection connection = open();
      std::vector<at::Tensor> list{at::full({1}, what, at::kByte)};
      const Transfer transfer = connection->send(list, static_cast<int>(next), kBeat);
      const Pending pending(*this, *transfer, beats_);
      return transfer->wait(patience);
    } catch (const std::exception&) {
      return false;  // threads that wait for the other process get the error themselves
    }
  }
  Heartbeat::Heard hear(int64_t previous) {
    using enum Heartbeat::Heard;
    try {
      const Connection connection = open();
      std::vector<at::Tensor> list{at::empty({1}, at::kByte)};
      const Transfer transfer = connection->recv(list, static_cast<int>(previous), kBeat);
      const Pending pending(*this, *transfer, beats_);
      if (!transfer->wait(kAsLongAsItTakes)) return kNothing;
      return *list[0].const_data_ptr<uint8_t>() == kIsThere ? kPresent : kGoodbye;
    } catch (const std::exception&) {
      // The other process may have left because it waited for a third one that failed.
      if (isOpen())
        if (const std::string why = notedFailure(); !why.empty()) leave(why);
      return kNothing;
    }
  }
  void miss(int64_t peer, int64_t silence) {
    leave(noteFailure(cat("process ", peer, " was not heard of for ", silence,
                          " seconds (ABELE_PEER_SILENCE), seen by process ", process_)));
  }

  void abandon() {
    static_cast<void>(heartbeat_.release());  // its threads are the parent's
    device_links_.abandon();
    for (auto& [process, transfer] : acknowledged_) static_cast<void>(transfer.release());
    acknowledged_.clear();
    for (Note& note : notes_) {
      static_cast<void>(note.received.release());
      static_cast<void>(note.sent.release());
    }
    notes_.clear();
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
  // The announcements that this process exchanges with one other process.
  struct Note {
    int64_t process = 0;
    std::vector<at::Tensor> in, out;
    Transfer received = {}, sent = {};
  };

  // One of several messages to or from other processes.
  struct Traded {
    int64_t process = 0;
    std::vector<at::Tensor> list;
    Transfer transfer = {};
  };

  static at::Tensor bytesOf(const std::string& text) {
    at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
    return bytes;
  }

  // Returns false if it was interrupted.
  bool wait(const Transfer& transfer) {
    const Pending pending(*this, *transfer, pending_);
    if (transfer->wait()) return true;
    return cannotLeave() && transfer->wait(kLeavingPatience);
  }

  bool cannotLeave() const {
    const std::lock_guard lock(mutex_);
    return is_ready_ && group_;
  }

  [[noreturn]] static void throwInterrupted() {
    throwUser(ErrorCode::E0602, {.what = "a transfer between processes was interrupted"});
  }

  template <class Transfers>
  void attempt(int64_t peer, Transfers&& transfers) {
    bool done = false;
    try {
      done = transfers();
    } catch (const std::exception& error) {
      throwLost(peer, shortened(error.what()));
    }
    if (done) return;
    requireOpen();  // another thread has heard of a failure
    throwInterrupted();
  }

  // Registers a message that a thread waits for.
  class Pending {
   public:
    using Set = std::set<c10d::Work*>;
    Pending(C10dPeers& peers, c10d::Work& work, Set& among) : peers_(peers), work_(work), among_(among) {
      const std::lock_guard lock(peers_.mutex_);
      among_.insert(&work_);
      if ((peers_.interrupted_ && &among_ == &peers_.pending_) || !peers_.group_) stop(work_);
    }
    ~Pending() {
      const std::lock_guard lock(peers_.mutex_);
      among_.erase(&work_);
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

   private:
    C10dPeers& peers_;
    c10d::Work& work_;
    Set& among_;
  };

  // Requires: the mutex is held.
  void stopAll() {
    for (c10d::Work* work : pending_) stop(*work);
  }

  [[noreturn]] void throwLost(int64_t peer, const std::string& error) {
    const bool is_late = error.find("imed out") != std::string::npos;
    const std::string what = cat("process ", peer, is_late ? " did not answer in time" : " ended or cannot be reached");
    const std::string seen = cat(what, ", seen by process ", process_);
    const std::string first = noteFailure(seen);
    leave(first);
    throwDevice(ErrorCode::E0606, {.what = first == seen ? what : "another process failed",
                                   .at = cat("process ", process_, " of ", processes_),
                                   .found = first == seen ? error : first,
                                   .remedy = kRestart});
  }

  // Returns the text that the store holds then: the first failure's.
  std::string noteFailure(const std::string& text) noexcept {
    const auto store = storeNow();
    return store ? collective::noteFailure(store, text) : whyBroken(text);
  }

  // The failure in the store, or "".
  std::string notedFailure() noexcept {
    const auto store = storeNow();
    return store ? collective::notedFailure(store) : whyBroken("");
  }

  c10::intrusive_ptr<c10d::Store> storeNow() const noexcept {
    const std::lock_guard lock(mutex_);
    return group_ ? group_->getStore() : c10::intrusive_ptr<c10d::Store>();
  }
  // The reason why the group broke; another thread may have left first.
  std::string whyBroken(const std::string& text) const {
    const std::lock_guard lock(mutex_);
    return broken_.empty() ? text : broken_;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;  // null once this process has left
  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t process_, processes_;
  std::atomic<int64_t> sent_bytes_ = 0;
  const Home home_;
  SharedLinks links_;
  DeviceLinks device_links_;
  std::vector<at::Tensor> acknowledgement_{at::empty({1}, at::kByte)};
  mutable std::mutex mutex_;       // guards group_, backend_, and all members below
  Acknowledgements acknowledged_;  // acknowledgements that are sent without waiting
  std::string broken_;             // the reason why it left
  std::set<c10d::Work*> pending_;  // one for each waiting thread
  std::set<c10d::Work*> beats_;    // an interruption does not end these
  std::vector<Note> notes_;        // announcements that announced() waits for
  bool interrupted_ = false;
  bool is_ready_ = false;                 // other processes may know that this one will complete the step
  bool agreed_ = false;                   // all processes will complete the step
  std::string own_note_;                  // the last announcement; used by the thread that announces
  std::unique_ptr<Heartbeat> heartbeat_;  // null: silence is not watched. Last: its threads use the others
};

// The groups of this process by name. Never destroyed, because objects that use them may outlive static objects.
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
    return {};  // no such group
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
    // A C++ program has no other place that says goodbye at its end.
    static const int at_the_end = std::atexit(leaveAll);
    static_cast<void>(at_the_end);
  }
  peers->requireOpen();
  ABELE_REQUIRE(
      peers->process() == process && peers->processes() == processes, E0714,
      {.what = cat("this is process ", process, " of ", processes, ", but has another place in its process group"),
       .found = cat("process ", peers->process(), " of ", peers->processes()),
       .remedy = "pass the launcher's numbers to opts.Distributed"});
  return peers;
}

std::shared_ptr<Peers> Peers::find(const std::string& name) {
  const std::lock_guard lock(joined().mutex);
  const auto found = joined().by_name.find(name);
  if (found == joined().by_name.end() || !found->second) return {};
  found->second->requireOpen();
  return found->second;
}

void Peers::leaveAll() {
  const std::lock_guard lock(joined().mutex);
  for (auto& [name, peers] : joined().by_name)
    if (peers) {
      peers->sayGoodbye();
      peers->leave("this process left its group");
      peers->joinHeartbeat();
    }
}

}  // namespace abele::collective
