#include "runtime/device/cpu/joint_call.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/kernels/basic.h"

namespace abele::runtime {
namespace {

constexpr int64_t kPacketBytes = int64_t{4} << 20;  // of one message; large ones keep several processes busy at once
constexpr int64_t kAlignment = 64;

// Several tensors as messages of limited size: each is a run of pieces, copied through memory of its own.
class Packets {
 public:
  struct Piece {
    at::Tensor sum, packed;  // the same elements, one after the other
  };
  struct Packet {
    std::vector<Piece> pieces;
    at::Tensor bytes;
  };

  explicit Packets(const std::vector<at::Tensor>& sums) {
    int64_t whole = 0;
    for (const at::Tensor& sum : sums) whole += (sum.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
    memory_ = at::empty({std::min(whole, kPacketBytes)}, at::kByte);
    for (const at::Tensor& sum : sums) add(sum);
    close();
  }

  std::vector<Packet>& all() { return packets_; }

 private:
  // In the order of memory where a tensor fills its own.
  static at::Tensor inOneRow(const at::Tensor& tensor) {
    ABELE_CHECK(tensor.is_non_overlapping_and_dense(), "a gradient sum with holes");
    return tensor.as_strided({tensor.numel()}, {1});
  }

  void add(const at::Tensor& sum) {
    const at::Tensor row = inOneRow(sum);
    for (int64_t done = 0; done < row.numel();) {
      const int64_t free = (memory_.numel() - used_) / row.itemsize();
      if (free == 0) {
        close();
        continue;
      }
      const int64_t count = std::min(free, row.numel() - done);
      const at::Tensor packed = memory_.narrow(0, used_, count * row.itemsize()).view(row.scalar_type());
      open_.push_back({row.narrow(0, done, count), packed});
      used_ = (used_ + count * row.itemsize() + kAlignment - 1) / kAlignment * kAlignment;
      done += count;
    }
  }

  void close() {
    if (open_.empty()) return;
    packets_.push_back({std::move(open_), memory_.narrow(0, 0, std::min(used_, memory_.numel()))});
    open_.clear();
    used_ = 0;
  }

  at::Tensor memory_;
  std::vector<Piece> open_;
  int64_t used_ = 0;
  std::vector<Packet> packets_;
};

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

void pack(const Packets::Packet& packet) {
  for (const Packets::Piece& piece : packet.pieces) copyInto(piece.packed, piece.sum);
}
void unpack(const Packets::Packet& packet) {
  for (const Packets::Piece& piece : packet.pieces) copyInto(piece.sum, piece.packed);
}

// Adds what the processes before this one have summed up. A sum of two is the same in either order.
class AddPrevious final : public Call {
 public:
  AddPrevious(const std::vector<at::Tensor>& sums, PeerMessages& peers, Agreement& agreement)
      : packets_(sums), peers_(peers), agreement_(agreement) {}

  void run(CallState& /*state*/) override {
    agreement_.check(peers_);
    if (peers_.process() == 0) return;
    for (const Packets::Packet& packet : packets_.all()) {
      peers_.receive(packet.bytes, peers_.process() - 1);
      for (const Packets::Piece& piece : packet.pieces) addInto(piece.sum, piece.packed, /*first=*/false);
    }
  }

 private:
  Packets packets_;
  PeerMessages& peers_;
  Agreement& agreement_;
};

// Hands the sum so far to the next process; the last one has it all, and it goes around once more, from 0 on.
class ShareSum final : public Call {
 public:
  ShareSum(const std::vector<at::Tensor>& sums, PeerMessages& peers) : packets_(sums), peers_(peers) {}

  void run(CallState& /*state*/) override {
    const int64_t own = peers_.process(), last = peers_.processes() - 1;
    if (own < last) handOn(own + 1);
    if (own == last) return handOn(0);
    receiveAll(own == 0 ? last : own - 1, own + 1 < last ? own + 1 : -1);
  }

 private:
  void handOn(int64_t to) {
    for (const Packets::Packet& packet : packets_.all()) {
      pack(packet);
      peers_.send(packet.bytes, to);
    }
  }

  void receiveAll(int64_t from, int64_t to) {
    for (const Packets::Packet& packet : packets_.all()) {
      peers_.receive(packet.bytes, from);
      if (to >= 0) peers_.send(packet.bytes, to);
      unpack(packet);
    }
  }

  Packets packets_;
  PeerMessages& peers_;
};

}  // namespace

bool isJoint(const exe::Instruction& instruction) { return hasTrait(instruction.op, kJoint); }

std::unique_ptr<Call> makeJointCall(const exe::Instruction& instruction, const SlotTable& slots, PeerMessages& peers,
                                    Agreement& agreement) {
  const std::vector<at::Tensor> sums = sumsOf(instruction, slots);
  if (ownOp(instruction.op) == OwnOp::kAddPrevious) return std::make_unique<AddPrevious>(sums, peers, agreement);
  return std::make_unique<ShareSum>(sums, peers);
}

}  // namespace abele::runtime
