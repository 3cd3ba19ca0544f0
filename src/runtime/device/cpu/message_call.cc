#include "runtime/device/cpu/message_call.h"

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/kernels/basic.h"

namespace abele::runtime {
namespace {

constexpr int64_t kAlignment = 64;  // of a value in a message

// The values of an instruction, each with its place in a message. A single value that fills its memory is the message
// itself; others are packed into memory of the call.
class Message {
 public:
  Message(const exe::Instruction& instruction, const SlotTable& slots, PeerMessages& peers)
      : peers_(peers), other_(instruction.args.at(1).i), link_(instruction.args.at(2).i) {
    for (int64_t id : instruction.args.at(0).ints) values_.push_back({slots.ref(static_cast<int32_t>(id)), {}});
    const at::Tensor& first = slots.tensor(static_cast<int32_t>(instruction.args[0].ints.at(0)), 0);
    is_direct_ = values_.size() == 1 && first.is_non_overlapping_and_dense();
    if (!is_direct_) makeRoom(instruction, slots);
  }

 protected:
  // What is sent or received; of a direct message in the frame of this micro-batch.
  at::Tensor bytes(const CallState& state) const {
    if (!is_direct_) return memory_;
    const at::Tensor& value = values_[0].slot.at(state.frame_of_group);
    return value.as_strided({value.numel()}, {1}).view(at::kByte);
  }
  void pack(const CallState& state) const {
    for (const Value& value : values_)
      if (!is_direct_) copyInto(value.packed, value.slot.at(state.frame_of_group));
  }
  void unpack(const CallState& state) const {
    for (const Value& value : values_)
      if (!is_direct_) copyInto(value.slot.at(state.frame_of_group), value.packed);
  }

  PeerMessages& peers_;
  int64_t other_, link_;

 private:
  struct Value {
    SlotRef slot;
    at::Tensor packed;  // the elements in logical order
  };

  void makeRoom(const exe::Instruction& instruction, const SlotTable& slots) {
    std::vector<int64_t> begin;
    int64_t size = 0;
    for (int64_t id : instruction.args[0].ints) {
      begin.push_back(size);
      const at::Tensor& value = slots.tensor(static_cast<int32_t>(id), 0);
      size += (value.numel() * value.itemsize() + kAlignment - 1) / kAlignment * kAlignment;
    }
    memory_ = at::empty({size}, at::kByte);
    for (size_t i = 0; i < values_.size(); ++i) {
      const at::Tensor& value = slots.tensor(static_cast<int32_t>(instruction.args[0].ints[i]), 0);
      values_[i].packed =
          memory_.narrow(0, begin[i], value.numel() * value.itemsize()).view(value.scalar_type()).view(value.sizes());
    }
  }

  std::vector<Value> values_;
  at::Tensor memory_;
  bool is_direct_ = false;
};

class Send final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    pack(state);
    peers_.sendOn(link_, bytes(state), other_);
  }
};

class Receive final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    peers_.receiveOn(link_, bytes(state), other_);
    unpack(state);
  }
};

}  // namespace

bool isMessage(const exe::Instruction& instruction) { return hasTrait(instruction.op, kMessage); }

std::unique_ptr<Call> makeMessageCall(const exe::Instruction& instruction, const SlotTable& slots,
                                      PeerMessages& peers) {
  if (ownOp(instruction.op) == OwnOp::kSend) return std::make_unique<Send>(instruction, slots, peers);
  return std::make_unique<Receive>(instruction, slots, peers);
}

}  // namespace abele::runtime
