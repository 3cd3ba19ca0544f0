// Hooks around compilation.
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "abele/model.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "model/hooks.h"

namespace abele {
namespace {

using Hooks = std::map<int64_t, std::shared_ptr<const std::function<void()>>>;
struct HookRegistry {
  ProcessMutex mu;
  int64_t next = 1;
  Hooks pre, post;
};
HookRegistry& hookRegistry() {
  static auto* const all = new HookRegistry;  // models of static lifetime outlive it otherwise
  return *all;
}

int64_t add(Hooks& hooks, std::function<void()> hook) {
  ABELE_REQUIRE(hook, E0708, {.what = "a hook around compilation is not a function", .remedy = "pass one"});
  auto kept = std::make_shared<const std::function<void()>>(std::move(hook));
  std::lock_guard lock(hookRegistry().mu);
  hooks.emplace(hookRegistry().next, std::move(kept));
  return hookRegistry().next++;
}

// A hook may register others, so none runs under the lock. A function of Python is copied and freed with the
// interpreter only, so neither happens there.
void callAll(const Hooks& hooks) {
  Hooks copy;
  {
    std::lock_guard lock(hookRegistry().mu);
    copy = hooks;
  }
  for (const auto& [handle, hook] : copy) (*hook)();
}

}  // namespace

int64_t registerPreCompileHook(std::function<void()> hook) { return add(hookRegistry().pre, std::move(hook)); }
int64_t registerPostCompileHook(std::function<void()> hook) { return add(hookRegistry().post, std::move(hook)); }
void removeCompileHook(int64_t handle) {
  std::array<Hooks::node_type, 2> removed;
  std::lock_guard lock(hookRegistry().mu);
  removed = {hookRegistry().pre.extract(handle), hookRegistry().post.extract(handle)};
}
model::CompileHooks::CompileHooks() { callAll(hookRegistry().pre); }
model::CompileHooks::~CompileHooks() {
  try {
    callAll(hookRegistry().post);
  } catch (const std::exception& error) {
    log::warn("a hook after compilation failed: ", error.what());
  } catch (...) {
    log::warn("a hook after compilation failed");
  }
}

}  // namespace abele
