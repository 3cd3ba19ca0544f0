// Which process holds which tensor of the model, and the points where processes wait for each other.
#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "collective/announcement.h"
#include "session/impl.h"

namespace abele::session {

std::map<std::string, int64_t> Session::owners() const {
  const exe::Executable& executable = impl_->require("owners()").executable;
  std::map<std::string, int64_t> owners;
  for (const exe::External& external : executable.externals) {
    const bool is_models =
        external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kBuffer;
    if (!is_models || external.slot < 0) continue;
    owners.emplace(external.name, std::max(0, executable.processOf(executable.slots[external.slot].group)));
  }
  return owners;
}

at::Tensor Session::weight(const std::string& name, const at::Tensor& host) const {
  const at::NoGradGuard no_grad;
  const Compiled& compiled = impl_->require("weight()");
  const std::vector<exe::External>& externals = compiled.executable.externals;
  for (size_t i = 0; i < externals.size(); ++i)
    if (externals[i].name == name && compiled.model_of[i] && externals[i].slot >= 0) return copyOf(compiled, i);
  if (!compiled.has_own_weights_alone) return host.detach().clone();
  // The first process holds a tensor that is on no device.
  meet("reads a weight", collective::hashOf(name.data(), name.size()));
  collective::Peers& peers = *compiled.peers;
  const at::Tensor value = at::empty(host.sizes(), host.options().device(at::kCPU));
  if (value.numel() == 0) return value;
  if (peers.process() != 0) {
    peers.receive(value.view(-1).view(at::kByte), 0);
    return value;
  }
  value.copy_(host);
  for (int64_t other = 1; other < peers.processes(); ++other) peers.send(value.view(-1).view(at::kByte), other);
  return value;
}

std::vector<uint64_t> Session::meet(const char* act, uint64_t word) const {
  const Compiled& compiled = impl_->require(act);
  if (!compiled.peers) return {word};
  collective::announce(*compiled.peers, {.act = act, .facts = {word}});
  std::vector<uint64_t> words;
  for (const collective::Announcement& each : collective::requireSameAct(*compiled.peers))
    words.push_back(each.facts[0]);
  return words;
}

}  // namespace abele::session
