#include "runtime/device/cpu/message_call.h"

#include <algorithm>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/kernels/basic.h"

namespace abele::runtime {
namespace {

constexpr int64_t kAlignment = 64;  // of a value in a parcel
// A larger value goes by itself, from its own memory to its own memory; smaller ones share a parcel of this size.
constexpr int64_t kParcelBytes = int64_t{64} << 10;

int64_t bytesOf(const at::Tensor& value) { return value.numel() * value.itemsize(); }
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The values of an instruction as parcels, which both ends cut alike: by the sizes of the values alone. Large values
// are sent from where they are; others are packed into memory of the call, which is no larger than a parcel, or than
// the largest value that has holes.
class Message {
 public:
  Message(const exe::Instruction& instruction, const SlotTable& slots, PeerMessages& peers)
      : peers_(peers), other_(instruction.args.at(1).i), link_(instruction.args.at(2).i) {
    const std::vector<int64_t>& ids = instruction.args.at(0).ints;
    int64_t room = 0;
    for (const int64_t id : ids) {
      const at::Tensor& tensor = slots.tensor(static_cast<int32_t>(id), 0);
      Value value{.slot = slots.ref(static_cast<int32_t>(id)), .bytes = bytesOf(tensor), .packed = {}};
      // The elements of several values go in logical order: the two ends may lay them out differently.
      const bool is_alone = ids.size() == 1 || value.bytes > kParcelBytes;
      if (is_alone || parcels_.empty() || parcels_.back().is_full || parcels_.back().bytes + value.bytes > kParcelBytes)
        parcels_.emplace_back();
      Parcel& parcel = parcels_.back();
      parcel.is_full = is_alone;
      parcel.is_direct = is_alone && (ids.size() == 1 ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous());
      value.begin = parcel.bytes;
      parcel.bytes += parcel.is_full ? value.bytes : aligned(value.bytes);
      if (!parcel.is_direct) room = std::max(room, parcel.bytes);
      parcel.values.push_back(std::move(value));
    }
    if (room > 0) makeRoom(room);
  }

 protected:
  struct Value {
    SlotRef slot;
    int64_t bytes = 0, begin = 0;  // in the parcel
    at::Tensor packed;             // its elements there, in logical order; undefined: it goes from where it is
  };
  struct Parcel {
    bool is_direct = false;  // one value, in its own memory
    bool is_full = false;
    int64_t bytes = 0;
    std::vector<Value> values;
  };

  // What is sent or received of a parcel; of a direct one in the frame of this micro-batch.
  at::Tensor bytesOfParcel(const Parcel& parcel, const CallState& state) const {
    if (!parcel.is_direct) return memory_.narrow(0, 0, parcel.bytes);
    const at::Tensor& value = parcel.values[0].slot.at(state.frame_of_group);
    return value.as_strided({value.numel()}, {1}).view(at::kByte);
  }

  PeerMessages& peers_;
  int64_t other_, link_;
  std::vector<Parcel> parcels_;

 private:
  void makeRoom(int64_t bytes) {
    memory_ = at::empty({bytes}, at::kByte);
    for (Parcel& parcel : parcels_)
      for (Value& value : parcel.values) {
        if (parcel.is_direct) continue;
        const at::Tensor& like = *value.slot.frames;
        value.packed = memory_.narrow(0, value.begin, value.bytes).view(like.scalar_type()).view(like.sizes());
      }
  }

  at::Tensor memory_;
};

class Send final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    for (const Parcel& parcel : parcels_) {
      for (const Value& value : parcel.values)
        if (value.packed.defined()) copyInto(value.packed, value.slot.at(state.frame_of_group));
      peers_.sendOn(link_, bytesOfParcel(parcel, state), other_);
    }
  }
};

class Receive final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    for (const Parcel& parcel : parcels_) {
      peers_.receiveOn(link_, bytesOfParcel(parcel, state), other_);
      for (const Value& value : parcel.values)
        if (value.packed.defined()) copyInto(value.slot.at(state.frame_of_group), value.packed);
    }
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
