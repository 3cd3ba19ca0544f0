#include "device/processes/message_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/instructions.h"
#include "device/processes/message_memory.h"

namespace abele::device {
namespace {

// A larger value is a message of its own, from its own memory to its own memory. Smaller values share a parcel of this
// size.
constexpr int64_t kParcelBytes = int64_t{64} << 10;

int64_t bytesOf(const at::Tensor& value) { return value.numel() * value.itemsize(); }

// The values of an instruction, as parcels. Both ends cut them alike, because only the sizes of the values matter.
// Large values are sent from their own memory. Others are packed into memory of the call. It is as large as a parcel,
// or as the largest value with holes. If messages need memory apart from values, there is room for all parcels. On a
// device parcels share the room one after the other, because its stream orders their uses.
class Message {
 public:
  Message(const exe::Instruction& instruction, const SlotTable& slots, collective::PeerMessages& peers,
          MessageMemory& memory, MessageMemory* on_device)
      : peers_(peers),
        memory_(&memory),
        on_device_(on_device),
        other_(instruction.args.at(1).i),
        link_(instruction.args.at(2).i) {
    const std::vector<int64_t>& ids = instruction.args.at(0).ints;
    for (const int64_t id : ids) {
      const at::Tensor& tensor = slots.tensor(static_cast<int32_t>(id), 0);
      Value value{.slot = slots.ref(static_cast<int32_t>(id)), .bytes = bytesOf(tensor), .packed = {}};
      // The elements of several values are in logical order, because the two ends may lay them out differently.
      const bool is_alone = ids.size() == 1 || value.bytes > kParcelBytes;
      if (is_alone || parcels_.empty() || parcels_.back().is_full || parcels_.back().bytes + value.bytes > kParcelBytes)
        parcels_.emplace_back();
      Parcel& parcel = parcels_.back();
      parcel.is_full = is_alone;
      parcel.is_direct = is_alone && (ids.size() == 1 ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous());
      value.begin = parcel.bytes;
      parcel.bytes += parcel.is_full ? value.bytes : aligned(value.bytes);
      parcel.values.push_back(std::move(value));
    }
    if (!on_device_) makeRoom();
  }

 protected:
  struct Value {
    SlotRef slot;
    int64_t bytes = 0, begin = 0;  // place in the parcel
    at::Tensor packed;             // its elements there, in logical order; undefined: it is sent from its own memory
  };
  struct Parcel {
    bool is_direct = false;    // one value, in the order of its own memory
    bool goes_itself = false;  // the value's own memory is the message
    bool is_full = false;
    int64_t begin = 0, bytes = 0;  // place in the room
    std::vector<Value> values;
  };

  /// Called before each message; does its work before the first one.
  void prepare() {
    if (!on_device_) return;
    MessageMemory* const on_device = std::exchange(on_device_, nullptr);
    if (peers_.takesDevice(link_, other_, on_device->device())) memory_ = on_device;
    makeRoom();
  }

  // The bytes of a parcel that are sent or received. If the value's own memory is the message, they are in the frame of
  // this micro-batch.
  at::Tensor bytesOfParcel(const Parcel& parcel, const CallState& state) const {
    if (!parcel.goes_itself) return room_.narrow(0, parcel.begin, parcel.bytes);
    return inRow(parcel.values[0].slot.at(state.frame_of_group)).view(at::kByte);
  }
  /// The elements of a value, in the order of its parcel.
  static at::Tensor elementsOf(const Parcel& parcel, const Value& value, const CallState& state) {
    const at::Tensor& tensor = value.slot.at(state.frame_of_group);
    return parcel.is_direct ? inRow(tensor) : tensor;
  }
  void pack(const Parcel& parcel, const CallState& state) const {
    for (const Value& value : parcel.values)
      if (value.packed.defined()) memory_->copy(value.packed, elementsOf(parcel, value, state));
  }
  void unpack(const Parcel& parcel, const CallState& state) const {
    for (const Value& value : parcel.values)
      if (value.packed.defined()) memory_->copy(elementsOf(parcel, value, state), value.packed);
  }

  collective::PeerMessages& peers_;
  MessageMemory* memory_;
  MessageMemory* on_device_;  // null: the memory is chosen, or no link takes memory of the device
  int64_t other_, link_;
  std::vector<Parcel> parcels_;

 private:
  static at::Tensor inRow(const at::Tensor& value) { return value.as_strided({value.numel()}, {1}); }

  void makeRoom() {
    int64_t bytes = 0;
    for (Parcel& parcel : parcels_) {
      parcel.goes_itself =
          parcel.is_direct && !memory_->isApart() && parcel.values[0].slot.frames->device() == memory_->device();
      if (memory_->isApart())
        parcel.begin = std::exchange(bytes, bytes + aligned(parcel.bytes));
      else if (!parcel.goes_itself)
        bytes = std::max(bytes, parcel.bytes);
    }
    if (bytes == 0 && !memory_->isApart()) return;
    room_ = memory_->room(bytes);
    for (Parcel& parcel : parcels_)
      for (Value& value : parcel.values) {
        if (parcel.goes_itself) continue;
        const at::Tensor& like = *value.slot.frames;
        const at::Tensor row = room_.narrow(0, parcel.begin + value.begin, value.bytes).view(like.scalar_type());
        value.packed = parcel.is_direct ? row : row.view(like.sizes());
      }
  }

  at::Tensor room_;
};

class Send final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    prepare();
    if (memory_->isApart()) {
      for (const Parcel& parcel : parcels_) pack(parcel, state);
      memory_->settle();
    }
    for (const Parcel& parcel : parcels_) {
      if (!memory_->isApart()) pack(parcel, state);
      peers_.sendOn(link_, bytesOfParcel(parcel, state), other_);
    }
  }
};

class Receive final : public Call, Message {
 public:
  using Message::Message;
  void run(CallState& state) override {
    prepare();
    memory_->settle();  // a device may still be reading the previous message from the room
    for (const Parcel& parcel : parcels_) {
      peers_.receiveOn(link_, bytesOfParcel(parcel, state), other_);
      unpack(parcel, state);
    }
  }
};

}  // namespace

bool isMessage(const exe::Instruction& instruction) { return hasTrait(instruction.op, kMessage); }

std::unique_ptr<Call> makeMessageCall(const exe::Instruction& instruction, const SlotTable& slots,
                                      collective::PeerMessages& peers, MessageMemory& memory,
                                      MessageMemory* on_device) {
  if (ownOp(instruction.op) == OwnOp::kSend)
    return std::make_unique<Send>(instruction, slots, peers, memory, on_device);
  return std::make_unique<Receive>(instruction, slots, peers, memory, on_device);
}

}  // namespace abele::device
