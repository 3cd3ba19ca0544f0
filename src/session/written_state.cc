#include "session/written_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "session/impl.h"

namespace abele::session {

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
    hosts[static_cast<size_t>(edited)] = nullptr;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!hosts[i]) continue;
    downloadSlices(compiled, i, *hosts[i]);
    compiled.weight_watch.note(i, *hosts[i]);
  }
}

}  // namespace abele::session
