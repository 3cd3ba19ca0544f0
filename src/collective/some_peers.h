// Messages among some of the processes of a training.
#pragma once

#include <ATen/core/Tensor.h>

#include "collective/peers.h"

namespace abele::collective {

/// Every `stride`-th process from `first` on, `count` of them, including this one, under the indices 0, 1, ... Uses the
/// connections of the whole group. link_offset: added to the numbers of links for messages from device to device
/// (exe/links.h).
class SomePeers final : public PeerMessages {
 public:
  SomePeers(std::shared_ptr<Peers> all, int64_t first, int64_t stride, int64_t count, int64_t link_offset = 0)
      : all_(std::move(all)), first_(first), stride_(stride), count_(count), link_offset_(link_offset) {}

  int64_t process() const override { return (all_->process() - first_) / stride_; }
  int64_t processes() const override { return count_; }
  void send(const at::Tensor& bytes, int64_t to) override { all_->send(bytes, among(to)); }
  void receive(const at::Tensor& bytes, int64_t from) override { all_->receive(bytes, among(from)); }
  void trade(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    all_->trade(amongAll(out), amongAll(in));
  }
  void sendOn(int64_t link, const at::Tensor& bytes, int64_t to) override {
    all_->sendOn(numberOf(link, bytes), bytes, among(to));
  }
  void receiveOn(int64_t link, const at::Tensor& bytes, int64_t from) override {
    all_->receiveOn(numberOf(link, bytes), bytes, among(from));
  }
  bool takesDevice(int64_t link, int64_t other, c10::Device device) const override {
    return all_->takesDevice(link + link_offset_, among(other), device);
  }

 private:
  int64_t numberOf(int64_t link, const at::Tensor& bytes) const { return bytes.is_cpu() ? link : link + link_offset_; }
  int64_t among(int64_t process) const { return first_ + process * stride_; }
  std::vector<at::Tensor> amongAll(const std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> all(static_cast<size_t>(all_->processes()));
    for (int64_t k = 0; k < count_; ++k) all[static_cast<size_t>(among(k))] = tensors[static_cast<size_t>(k)];
    return all;
  }

  std::shared_ptr<Peers> all_;
  int64_t first_, stride_, count_, link_offset_;
};

}  // namespace abele::collective
