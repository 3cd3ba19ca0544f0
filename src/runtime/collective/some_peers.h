// Some of the processes of a training, among themselves.
#pragma once

#include "runtime/collective/peers.h"

namespace abele::runtime {

/// Every `stride`-th process from `first` on, `count` of them, this one included: their indices here are 0, 1, ... The
/// messages are those of all processes, over the same connections.
class SomePeers final : public PeerMessages {
 public:
  SomePeers(std::shared_ptr<Peers> all, int64_t first, int64_t stride, int64_t count)
      : all_(std::move(all)), first_(first), stride_(stride), count_(count) {}

  int64_t process() const override { return (all_->process() - first_) / stride_; }
  int64_t processes() const override { return count_; }
  void send(const at::Tensor& bytes, int64_t to) override { all_->send(bytes, among(to)); }
  void receive(const at::Tensor& bytes, int64_t from) override { all_->receive(bytes, among(from)); }
  void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) override { all_->sendOn(link, bytes, among(to)); }
  void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) override {
    all_->receiveOn(link, bytes, among(from));
  }

 private:
  int64_t among(int64_t process) const { return first_ + process * stride_; }

  std::shared_ptr<Peers> all_;
  int64_t first_, stride_, count_;
};

}  // namespace abele::runtime
