#include "device/processes/stage_shares.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "collective/announcement.h"
#include "collective/some_peers.h"
#include "exe/links.h"
#include "memory/tensors.h"

namespace abele::device {

StageShares::StageShares(const exe::Executable& executable, const DeviceOptions& options)
    : executable_(executable), peers_(options.peers), own_(options.stage_process), readers_(options.readers) {
  if (peers_) {
    const int64_t stages = executable.stage_processes;
    replica_ = std::make_unique<collective::SomePeers>(peers_, options.process * stages, 1, stages,
                                                       exe::linkOffset(executable));
    stages_ = std::make_unique<collective::SomePeers>(peers_, own_, stages, executable.processes);
  }
  if (!isNeeded()) return;
  ABELE_CHECK(peers_, "stages in other processes without connections to them");
  owners_ = exe::processesOfOutputs(executable);
  if (readers_.empty())
    readers_.assign(static_cast<std::size_t>(executable.numOutputs()), DeviceOptions::kAllProcesses);
  is_for_all_ = std::ranges::all_of(readers_, [](int32_t reader) { return reader == DeviceOptions::kAllProcesses; });
}

bool StageShares::takesPart(int64_t owner, int64_t reader) const {
  if (reader == DeviceOptions::kAllProcesses) return true;
  return owner != reader && (own_ == owner || own_ == reader);
}

// The owner sends to each reader one after the other; results and weights are shared at most once a step.
void StageShares::share(const at::Tensor& bytes, int64_t owner, int64_t reader) const {
  if (bytes.numel() == 0) return;
  if (own_ != owner) return replica_->receive(bytes, owner);
  for (int64_t other = 0; other < replica_->processes(); ++other)
    if (other != own_ && (reader == DeviceOptions::kAllProcesses || reader == other)) replica_->send(bytes, other);
}

at::Tensor StageShares::value(int32_t slot, const HostValue& own) const {
  const c10::InferenceMode no_autograd(false);
  collective::announce(*peers_, {.act = "reads weights or state", .facts = {static_cast<uint64_t>(slot)}});
  const collective::Differing differing =
      collective::firstDiffering(collective::requireSameAct(*peers_), 0, peers_->processes());
  ABELE_REQUIRE(
      differing.process < 0, E0713,
      {.what = cat("process ", differing.process, " reads another tensor of the devices than process ", differing.from),
       .at = cat("process ", peers_->process(), " of ", peers_->processes()),
       .expected = "copyWeightsToHost(), state_dict() and save() in the same order in all processes",
       .remedy = "call them in all processes; work of a single process comes after them"});
  const int32_t owner = executable_.processOf(executable_.slots[slot].group);
  const Type& type = executable_.slots[slot].type;
  at::Tensor value = at::empty(type.sizes, memory::scalarType(type.dtype));
  if (owner == own_) value.copy_(own(slot));
  share(value.view(-1).view(at::kByte), owner, DeviceOptions::kAllProcesses);
  return value;
}

void StageShares::shareResults(const std::vector<std::vector<at::Tensor>>& outputs) const {
  if (!isNeeded()) return;
  const c10::InferenceMode no_autograd;
  for (int64_t owner = 0; owner < replica_->processes(); ++owner)
    for (int64_t reader = DeviceOptions::kAllProcesses; reader < replica_->processes(); ++reader)
      if (takesPart(owner, reader)) shareResults(outputs, owner, reader);
  if (is_for_all_) return;
  // A process that gets no result still waits for the others: a step ends in all of them, or fails in all.
  collective::announce(*peers_, {.act = "ends a step"});
  collective::requireSameAct(*peers_);
}

// Shares all results in one message.
void StageShares::shareResults(const std::vector<std::vector<at::Tensor>>& outputs, int64_t owner,
                               int64_t reader) const {
  std::vector<at::Tensor> results;  // without repeats: several micro-batches may be added up in one tensor
  int64_t bytes = 0;
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    if (owners_[output] != owner || readers_[output % readers_.size()] != reader) continue;
    for (const at::Tensor& result : outputs[output]) {
      const bool is_new = result.defined() && (results.empty() || !results.back().is_same(result));
      if (!is_new) continue;
      results.push_back(result);
      bytes += static_cast<int64_t>(result.nbytes());
    }
  }
  const at::Tensor message = at::empty({bytes}, at::kByte);
  const auto forEach = [&](auto&& fn) {
    int64_t at = 0;
    for (const at::Tensor& result : results) {
      const auto size = static_cast<int64_t>(result.nbytes());
      fn(result, message.narrow(0, at, size));
      at += size;
    }
  };
  if (owner == own_)
    forEach([](const at::Tensor& result, const at::Tensor& place) {
      at::Tensor(place).copy_(result.contiguous().view(-1).view(at::kByte));
    });
  share(message, owner, reader);
  if (owner != own_)
    forEach([](const at::Tensor& result, const at::Tensor& place) {
      const at::Tensor dense = at::empty(result.sizes(), result.options());
      dense.view(-1).view(at::kByte).copy_(place);
      at::Tensor(result).copy_(dense);
    });
}

}  // namespace abele::device
