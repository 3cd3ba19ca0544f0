#include "links.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "device.h"
#include "simulated.h"

namespace simulated {
namespace {

std::atomic<int64_t> messages = 0;

/// What jobs of streams use, which may outlive the group.
struct Channel {
  c10::intrusive_ptr<c10d::Store> store;
  std::atomic<bool> is_aborted = false;

  /// Nobody says that the other process has ended: whatever goes wrong, its message does not come.
  template <class Condition>
  bool waitUntil(Condition condition) {
    while (!is_aborted) {
      try {
        if (condition()) return true;
      } catch (const std::exception&) {  // the store is gone
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return false;
  }
  void put(const std::string& key, const void* bytes, size_t count) {
    const auto* begin = static_cast<const uint8_t*>(bytes);
    const std::vector<uint8_t> copy(begin, begin + count);
    waitUntil([&] {
      store->set(key, copy);
      return true;
    });
    waitUntil([&] { return !store->check({key}); });
  }
  void take(const std::string& key, void* bytes, size_t count) {
    if (!waitUntil([&] { return store->check({key}); })) return;
    std::vector<uint8_t> copy;
    waitUntil([&] {
      copy = store->get(key);
      store->deleteKey(key);
      return true;
    });
    TORCH_CHECK(copy.size() == count, "a message of ", copy.size(), " bytes where ", count, " are expected");
    std::memcpy(bytes, copy.data(), count);
  }
};

class Message final : public c10d::Work {
 public:
  Message(int rank, c10d::OpType type, MarkerPtr done, int device)
      : Work(rank, type), done_(std::move(done)), device_(device) {}
  bool isCompleted() override { return isReached(done_); }
  // Like those of real devices: the stream waits, and the host does not.
  bool wait(std::chrono::milliseconds) override {
    block(done_, device_, currentStream(device_));
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override {}

 private:
  MarkerPtr done_;
  int device_;
};

class Links final : public c10d::Backend {
 public:
  Links(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : Backend(rank, size), channel_(std::make_shared<Channel>()) {
    channel_->store = std::move(store);
  }
  ~Links() override { channel_->is_aborted = true; }
  const std::string getBackendName() const override { return "simulated_links"; }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) override {
    return start(tensors, to, c10d::OpType::SEND);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) override {
    return start(tensors, from, c10d::OpType::RECV);
  }
  void abort() override { channel_->is_aborted = true; }

 private:
  c10::intrusive_ptr<c10d::Work> start(const std::vector<at::Tensor>& tensors, int other, c10d::OpType type) {
    TORCH_CHECK(tensors.size() == 1 && tensors[0].device().type() == kType && tensors[0].is_contiguous(),
                "a message is one tensor of a simulated device, in a row");
    TORCH_CHECK(other >= 0 && other < getSize() && other != getRank(), "there is no process ", other);
    TORCH_CHECK(!channel_->is_aborted, "the communicator was aborted");
    const at::Tensor& tensor = tensors[0];
    const int device = tensor.device().index();
    const bool sends = type == c10d::OpType::SEND;
    const std::lock_guard lock(mutex_);
    if (stream_ < 0) stream_ = ownStream(device_ = device);
    TORCH_CHECK(device == device_, "a communicator of simulated:", device_, " has no way from simulated:", device);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    const std::string key = std::to_string(sends ? getRank() : other) + "/" + std::to_string(calls_++);
    block(record(device, currentStream(device)), device, stream_);
    enqueue(device, stream_, sends ? "send" : "receive", {{begin, begin + tensor.nbytes(), !sends}},
            [channel = channel_, sends, key, bytes = twin(tensor.const_data_ptr()), count = tensor.nbytes()] {
              sends ? channel->put(key, bytes, count) : channel->take(key, bytes, count);
            });
    ++messages;
    return c10::make_intrusive<Message>(getRank(), type, record(device, stream_), device);
  }

  std::shared_ptr<Channel> channel_;
  std::mutex mutex_;
  int stream_ = -1, device_ = -1;
  int64_t calls_ = 0;
};

}  // namespace

int64_t numMessages() { return messages; }

c10::intrusive_ptr<c10d::Backend> makeLinks(c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
  return c10::make_intrusive<Links>(std::move(store), rank, size);
}

}  // namespace simulated
