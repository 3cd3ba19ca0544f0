#include "device/processes/message_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/basic.h"

namespace abele::device {
namespace {

class HostMemory final : public MessageMemory {
 public:
  bool isApart() const override { return false; }
  at::Tensor room(int64_t bytes) override { return at::empty({bytes}, at::kByte); }
  void copy(const at::Tensor& to, const at::Tensor& from) override { kernels::copyInto(to, from); }
  void settle() override {}
};

}  // namespace

MessageMemory& hostMessageMemory() {
  static HostMemory memory;
  return memory;
}

}  // namespace abele::device
