#include "device/processes/joint_call.h"

#include <algorithm>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/instructions.h"
#include "device/processes/packets.h"

namespace abele::device {
namespace {

constexpr int64_t kPacketBytes = int64_t{4} << 20;  // for one message, or for all messages of a round
constexpr int64_t kLeastBytes = int64_t{16} << 10;  // for a slice: smaller messages take as long

std::vector<at::Tensor> sumsOf(const exe::Instruction& instruction, const SlotTable& slots) {
  ABELE_CHECK(instruction.args.size() == 1 && instruction.args[0].kind == Arg::Kind::kIdList, instruction.op);
  std::vector<at::Tensor> sums;
  for (int64_t id : instruction.args[0].ints) {
    const auto slot = static_cast<int32_t>(id);
    ABELE_CHECK(slots.framesOf(slots.ref(slot).group) == 1, "a gradient sum with frames");
    sums.push_back(slots.tensor(slot, 0));
  }
  return sums;
}

// --- in a line -------------------------------------------------------------------------------------------------------
std::vector<Packet> linePackets(const std::vector<at::Tensor>& sums, MessageMemory& memory) {
  const int64_t capacity = std::min(messageBytes(sums), kPacketBytes);
  PacketRoom room(memory, capacity);
  std::vector<Packet> packets;
  for (const Cut& cut : cutSums(sums, capacity)) packets.emplace_back(cut, room);
  return packets;
}

// Adds the sum of the processes before this one. Two terms give the same sum in either order.
std::unique_ptr<Call> makeAddPrevious(const std::vector<at::Tensor>& sums, collective::PeerMessages& peers,
                                      MessageMemory& memory) {
  return callOf([packets = linePackets(sums, memory), &peers, &memory](CallState& /*state*/) {
    if (peers.process() == 0) return;
    for (const Packet& packet : packets) {
      memory.settle();  // the packets share one room
      peers.receive(packet.bytes(), peers.process() - 1);
      packet.addToSums();
    }
  });
}

// Sends the sum so far to the next process. The last process has the whole sum, which then goes round once more,
// starting at process 0.
class ShareSum final : public Call {
 public:
  ShareSum(const std::vector<at::Tensor>& sums, collective::PeerMessages& peers, MessageMemory& memory)
      : packets_(linePackets(sums, memory)), peers_(peers), memory_(memory) {}

  void run(CallState& /*state*/) override {
    const int64_t own = peers_.process(), last = peers_.processes() - 1;
    if (own < last) handOn(own + 1);
    if (own == last) return handOn(0);
    receiveAll(own == 0 ? last : own - 1, own + 1 < last ? own + 1 : -1);
  }

 private:
  void handOn(int64_t to) {
    for (const Packet& packet : packets_) {
      memory_.settle();
      packet.pack();
      memory_.settle();
      peers_.send(packet.bytes(), to);
    }
  }

  void receiveAll(int64_t from, int64_t to) {
    for (const Packet& packet : packets_) {
      memory_.settle();
      peers_.receive(packet.bytes(), from);
      if (to >= 0) peers_.send(packet.bytes(), to);
      packet.unpack();
    }
  }

  std::vector<Packet> packets_;
  collective::PeerMessages& peers_;
  MessageMemory& memory_;
};

// --- in slices -------------------------------------------------------------------------------------------------------
//
// Every process owns a slice of a round's sums. It adds up the slices of all processes, in their order, while the
// others do the same with theirs. Rounds limit the memory of messages.
class Slices {
 public:
  Slices(const std::vector<at::Tensor>& sums, collective::PeerMessages& peers, MessageMemory& memory)
      : peers_(peers), memory_(memory) {
    const int64_t share = (messageBytes(sums) + count() - 1) / count();
    const int64_t bytes = std::max(std::min(share, kPacketBytes / count()), kLeastBytes);
    cuts_ = cutSums(sums, aligned(bytes));
  }

  int64_t own() const { return peers_.process(); }
  int64_t count() const { return peers_.processes(); }
  int64_t rounds() const { return (static_cast<int64_t>(cuts_.size()) + count() - 1) / count(); }
  /// The slice of the owner in this round, or null.
  const Cut* cutOf(int64_t round, int64_t owner) const {
    const auto index = static_cast<size_t>(round * count() + owner);
    return index < cuts_.size() ? &cuts_[index] : nullptr;
  }
  /// One room for the messages to or from each process.
  std::vector<PacketRoom> rooms() const {
    int64_t bytes = 0;
    for (const Cut& cut : cuts_) bytes = std::max(bytes, cut.bytes);
    std::vector<PacketRoom> made;
    for (int64_t k = 0; k < count(); ++k) made.emplace_back(memory_, bytes);
    return made;
  }
  /// Needed between rounds, because they share their rooms.
  void settle() const { memory_.settle(); }
  void trade(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) const {
    memory_.settle();
    peers_.trade(out, in);
  }

 private:
  collective::PeerMessages& peers_;
  MessageMemory& memory_;
  std::vector<Cut> cuts_;
};

// The messages of a round, by process; absent without a slice.
using Packets = std::vector<std::optional<Packet>>;

void put(Packets& packets, const Cut* cut, PacketRoom& room) {
  packets.emplace_back();
  if (cut) packets.back().emplace(*cut, room);
}

// An absent message is replaced by one byte. So every two processes exchange something in every round, and none
// continues after another one is gone.
std::vector<at::Tensor> bytesOf(const Packets& packets) {
  std::vector<at::Tensor> bytes;
  for (const std::optional<Packet>& packet : packets)
    bytes.push_back(packet ? packet->bytes() : at::zeros({1}, at::kByte));
  return bytes;
}

// Turns the slices that this process owns into the sums of all processes, and sends its parts of the other slices to
// their owners.
class AddSlices final : public Call {
 public:
  AddSlices(const std::vector<at::Tensor>& sums, collective::PeerMessages& peers, MessageMemory& memory)
      : slices_(sums, peers, memory) {
    std::vector<PacketRoom> out = slices_.rooms(), in = slices_.rooms();
    for (int64_t round = 0; round < slices_.rounds(); ++round) {
      Round& made = rounds_.emplace_back();
      const Cut* own = slices_.cutOf(round, slices_.own());
      made.has_own = own != nullptr;
      for (int64_t k = 0; k < slices_.count(); ++k) {
        put(made.out, k == slices_.own() ? nullptr : slices_.cutOf(round, k), out[static_cast<size_t>(k)]);
        put(made.in, k == slices_.own() ? nullptr : own, in[static_cast<size_t>(k)]);
      }
      made.out_bytes = bytesOf(made.out);
      made.in_bytes = bytesOf(made.in);
    }
  }

  void run(CallState& /*state*/) override {
    for (const Round& round : rounds_) {
      slices_.settle();
      for (const std::optional<Packet>& packet : round.out)
        if (packet) packet->pack();
      slices_.trade(round.out_bytes, round.in_bytes);
      if (round.has_own) add(round.in);
    }
  }

 private:
  struct Round {
    Packets out, in;
    std::vector<at::Tensor> out_bytes, in_bytes;
    bool has_own = false;
  };

  // ((s0 + s1) + s2) + ...: the processes before this one come first and are added up in the first one's message. Two
  // terms give the same sum in either order.
  void add(const Packets& in) const {
    const auto own = static_cast<size_t>(slices_.own());
    for (size_t k = 1; k < own; ++k) in[k]->addTo(*in[0]);
    if (own > 0) in[0]->addToSums();
    for (size_t k = own + 1; k < in.size(); ++k) in[k]->addToSums();
  }

  Slices slices_;
  std::vector<Round> rounds_;
};

// Gives the slices of all owners to all processes.
class ShareSlices final : public Call {
 public:
  ShareSlices(const std::vector<at::Tensor>& sums, collective::PeerMessages& peers, MessageMemory& memory)
      : slices_(sums, peers, memory) {
    std::vector<PacketRoom> rooms = slices_.rooms();
    for (int64_t round = 0; round < slices_.rounds(); ++round) {
      Round& made = rounds_.emplace_back();
      for (int64_t k = 0; k < slices_.count(); ++k)
        put(made.packets, slices_.cutOf(round, k), rooms[static_cast<size_t>(k)]);
      made.in_bytes = bytesOf(made.packets);
      made.out_bytes.assign(made.packets.size(), made.in_bytes[static_cast<size_t>(slices_.own())]);
    }
  }

  void run(CallState& /*state*/) override {
    const auto own = static_cast<size_t>(slices_.own());
    for (const Round& round : rounds_) {
      slices_.settle();
      if (round.packets[own]) round.packets[own]->pack();
      slices_.trade(round.out_bytes, round.in_bytes);
      for (size_t k = 0; k < round.packets.size(); ++k)
        if (k != own && round.packets[k]) round.packets[k]->unpack();
    }
  }

 private:
  struct Round {
    Packets packets;
    std::vector<at::Tensor> out_bytes, in_bytes;
  };

  Slices slices_;
  std::vector<Round> rounds_;
};

}  // namespace

bool isJoint(const exe::Instruction& instruction) { return hasTrait(instruction.op, kJoint); }

const exe::Instruction* firstJoint(const exe::Executable& executable, int32_t worker) {
  for (const exe::Action& action : executable.workers[worker].actions)
    for (const exe::Instruction& instruction : executable.segments[action.segment].instructions)
      if (isJoint(instruction)) return &instruction;
  return nullptr;
}

std::unique_ptr<Call> makeJointCall(const exe::Executable& executable, const exe::Instruction& instruction,
                                    const SlotTable& slots, collective::PeerMessages& peers, Agreement* agreement,
                                    MessageMemory& memory) {
  const std::vector<at::Tensor> sums = sumsOf(instruction, slots);
  // Slices are added by their owners, who would need the separate sums of each replica.
  const bool in_slices = executable.replicas == 1;
  std::unique_ptr<Call> call;
  if (ownOp(instruction.op) == OwnOp::kShareSum && in_slices)
    call = std::make_unique<ShareSlices>(sums, peers, memory);
  else if (ownOp(instruction.op) == OwnOp::kShareSum)
    call = std::make_unique<ShareSum>(sums, peers, memory);
  else if (in_slices)
    call = std::make_unique<AddSlices>(sums, peers, memory);
  else
    call = makeAddPrevious(sums, peers, memory);
  if (!agreement) return call;
  return callOf([call = std::move(call), &peers, agreement](CallState& state) {
    agreement->check(peers);
    call->run(state);
  });
}

}  // namespace abele::device
