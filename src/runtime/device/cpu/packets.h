// Private to joint_call: several tensors as messages of limited size.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// A run of tensors, one after the other, for one message.
struct Cut {
  struct Row {
    at::Tensor sum;       // elements of one tensor, in the order of its memory
    int64_t begin_bytes;  // in the message
  };
  std::vector<Row> rows;
  int64_t bytes = 0;
};

/// Bytes that all of the tensors take in messages.
int64_t messageBytes(const std::vector<at::Tensor>& sums);
/// Cuts the tensors into messages of at most so many bytes; only the last one may have fewer, but for the gaps that
/// alignment leaves. Requires: tensors without holes; capacity a multiple of 64.
std::vector<Cut> cutSums(const std::vector<at::Tensor>& sums, int64_t capacity_bytes);

/// A cut with memory for the message.
class Packet {
 public:
  Packet(const Cut& cut, const at::Tensor& memory);

  const at::Tensor& bytes() const { return bytes_; }
  void pack() const;
  void unpack() const;
  /// The message is added to the sums, or to another message of the same cut.
  void addToSums() const;
  void addTo(const Packet& other) const;

 private:
  struct Piece {
    at::Tensor sum, packed;  // the same elements
  };
  std::vector<Piece> pieces_;
  at::Tensor bytes_;
};

}  // namespace abele::runtime
