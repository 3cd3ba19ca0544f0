#include "session/written_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "session/impl.h"

namespace abele::session {

namespace {

/// The first external that the host has a newer value of, or whose memory another program took; -1: none.
int64_t firstToUpload(Compiled& compiled) {
  if (!compiled.shared) return -1;
  const int64_t lost = compiled.shared->firstLost();
  return lost >= 0 ? lost : compiled.weight_watch.firstWritten(compiled.model_of);
}

}  // namespace

bool forwardWrites(Session& session) { return !session.parts().require("forwardWrites()").written_by_forward.empty(); }

bool hasEdits(Session& session) { return firstToUpload(session.parts().require("hasEdits()")) >= 0; }

void uploadEdited(Session& session) {
  Compiled& compiled = session.parts().require("uploadEdited()");
  for (int64_t next = firstToUpload(compiled); next >= 0; next = firstToUpload(compiled)) {
    const auto external = static_cast<size_t>(next);
    requireFits(compiled, external, *compiled.model_of[external]);
    uploadTensor(compiled, external);
  }
}

void copyWrittenToHost(Session& session) {
  const at::NoGradGuard no_grad;
  Compiled& compiled = session.parts().require("copyWrittenToHost()");
  std::vector<at::Tensor*> hosts = compiled.model_of;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i]) continue;
    const bool is_shared = compiled.shared && compiled.shared->contains(i);
    const bool is_here = compiled.executable.externals[i].slot >= 0 && !hosts[i]->is_meta();
    if (is_shared || !is_here || !compiled.backend->writes(static_cast<int32_t>(i))) hosts[i] = nullptr;
  }
  for (int64_t edited = compiled.weight_watch.firstEdited(hosts); edited >= 0;
       edited = compiled.weight_watch.firstEdited(hosts))
    hosts[edited] = nullptr;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i]) continue;
    downloadSlices(compiled, i, *hosts[i]);
    compiled.weight_watch.note(i, *hosts[i]);
  }
}

}  // namespace abele::session
