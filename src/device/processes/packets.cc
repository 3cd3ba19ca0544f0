#include "device/processes/packets.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "kernels/basic.h"

namespace abele::device {
namespace {

// The elements in the order of memory, for a tensor without holes.
at::Tensor inOneRow(const at::Tensor& tensor) {
  ABELE_CHECK(tensor.is_non_overlapping_and_dense(), "a gradient sum with holes");
  return tensor.as_strided({tensor.numel()}, {1});
}

at::Tensor rowOf(const at::Tensor& bytes, const Cut::Row& row) {
  return bytes.narrow(0, row.begin_bytes, static_cast<int64_t>(row.sum.nbytes())).view(row.sum.scalar_type());
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

at::Tensor PacketRoom::beside(const Cut::Row& row) {
  if (row.sum.is_cpu()) return {};
  at::Tensor& all = on_device_[row.sum.device().index()];
  if (!all.defined()) all = at::empty(bytes_.sizes(), at::TensorOptions(at::kByte).device(row.sum.device()));
  return rowOf(all, row);
}

Packet::Packet(const Cut& cut, PacketRoom& room) : memory_(room.memory()), bytes_(room.of(cut)) {
  for (const Cut::Row& row : cut.rows) pieces_.push_back({row.sum, rowOf(bytes_, row), room.beside(row)});
}

void Packet::pack() const {
  for (const Piece& piece : pieces_) memory_.copy(piece.packed, piece.sum);
}
void Packet::unpack() const {
  for (const Piece& piece : pieces_) memory_.copy(piece.sum, piece.packed);
}
void Packet::addToSums() const {
  for (const Piece& piece : pieces_) {
    if (piece.beside.defined()) memory_.copy(piece.beside, piece.packed);
    kernels::addInto(piece.sum, piece.beside.defined() ? piece.beside : piece.packed, /*first=*/false);
  }
}
void Packet::addTo(const Packet& other) const {
  for (size_t i = 0; i < pieces_.size(); ++i)
    kernels::addInto(other.pieces_[i].packed, pieces_[i].packed, /*first=*/false);
}

}  // namespace abele::device
