// Private to joint_call: several tensors as messages of limited size.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/processes/message_memory.h"

namespace abele::device {

/// Consecutive rows of tensors that form one message.
struct Cut {
  struct Row {
    at::Tensor sum;       // elements of one tensor, in the order of its memory
    int64_t begin_bytes;  // place in the message
  };
  std::vector<Row> rows;
  int64_t bytes = 0;
};

/// Bytes that all tensors take in messages.
int64_t messageBytes(const std::vector<at::Tensor>& sums);
/// Cuts the tensors into messages of at most capacity_bytes. Only the last message may have fewer, apart from gaps for
/// alignment. Requires: tensors without holes; capacity a multiple of 64.
std::vector<Cut> cutSums(const std::vector<at::Tensor>& sums, int64_t capacity_bytes);

/// Memory for one message at a time, and on each device with sums, memory for the received terms.
class PacketRoom {
 public:
  PacketRoom(MessageMemory& memory, int64_t bytes) : memory_(memory), bytes_(memory.room(bytes)) {}
  MessageMemory& memory() const { return memory_; }
  at::Tensor of(const Cut& cut) const { return bytes_.narrow(0, 0, cut.bytes); }
  /// Memory for a row on its device; undefined on the host.
  at::Tensor beside(const Cut::Row& row);

 private:
  MessageMemory& memory_;
  at::Tensor bytes_;
  std::map<c10::DeviceIndex, at::Tensor> on_device_;
};

/// A cut with memory for its message. As in MessageMemory, work on sums and on the message may continue after a call
/// returns.
class Packet {
 public:
  Packet(const Cut& cut, PacketRoom& room);

  const at::Tensor& bytes() const { return bytes_; }
  void pack() const;
  void unpack() const;
  /// Adds the message to the sums, or to another message of the same cut.
  void addToSums() const;
  void addTo(const Packet& other) const;

 private:
  struct Piece {
    at::Tensor sum, packed;  // the same elements in both
    at::Tensor beside;       // a copy on the device, before it is added to a sum there
  };
  MessageMemory& memory_;
  std::vector<Piece> pieces_;
  at::Tensor bytes_;
};

}  // namespace abele::device
