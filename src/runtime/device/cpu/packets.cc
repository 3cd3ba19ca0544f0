#include "runtime/device/cpu/packets.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/kernels/basic.h"

namespace abele::runtime {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// In the order of memory where a tensor fills its own.
at::Tensor inOneRow(const at::Tensor& tensor) {
  ABELE_CHECK(tensor.is_non_overlapping_and_dense(), "a gradient sum with holes");
  return tensor.as_strided({tensor.numel()}, {1});
}

}  // namespace

int64_t messageBytes(const std::vector<at::Tensor>& sums) {
  int64_t whole = 0;
  for (const at::Tensor& sum : sums) whole += aligned(static_cast<int64_t>(sum.nbytes()));
  return whole;
}

std::vector<Cut> cutSums(const std::vector<at::Tensor>& sums, int64_t capacity_bytes) {
  std::vector<Cut> cuts;
  Cut open;
  int64_t used = 0;
  const auto close = [&] {
    if (!open.rows.empty()) cuts.push_back(std::move(open));
    open = {};
    used = 0;
  };
  for (const at::Tensor& sum : sums) {
    const at::Tensor row = inOneRow(sum);
    for (int64_t done = 0; done < row.numel();) {
      const int64_t free = (capacity_bytes - used) / row.itemsize();
      if (free == 0) {
        close();
        continue;
      }
      const int64_t count = std::min(free, row.numel() - done);
      open.rows.push_back({row.narrow(0, done, count), used});
      open.bytes = used + count * row.itemsize();
      used = aligned(open.bytes);
      done += count;
    }
  }
  close();
  return cuts;
}

Packet::Packet(const Cut& cut, const at::Tensor& memory) : bytes_(memory.narrow(0, 0, cut.bytes)) {
  for (const Cut::Row& row : cut.rows)
    pieces_.push_back(
        {row.sum, memory.narrow(0, row.begin_bytes, row.sum.numel() * row.sum.itemsize()).view(row.sum.scalar_type())});
}

void Packet::pack() const {
  for (const Piece& piece : pieces_) copyInto(piece.packed, piece.sum);
}
void Packet::unpack() const {
  for (const Piece& piece : pieces_) copyInto(piece.sum, piece.packed);
}
void Packet::addToSums() const {
  for (const Piece& piece : pieces_) addInto(piece.sum, piece.packed, /*first=*/false);
}
void Packet::addTo(const Packet& other) const {
  for (size_t i = 0; i < pieces_.size(); ++i) addInto(other.pieces_[i].packed, pieces_[i].packed, /*first=*/false);
}

}  // namespace abele::runtime
