#include "base/device_graphs.h"

#include <map>
#include <mutex>

namespace abele {
namespace {

struct Makers {
  std::mutex mutex;
  std::map<std::string, DeviceGraphMaker> of_kind;
};

// Never destroyed: the modules that lend makers may end later than static objects.
Makers& makers() {
  static auto* const all = new Makers;
  return *all;
}

}  // namespace

void lendDeviceGraphs(const std::string& kind, DeviceGraphMaker maker) {
  const std::lock_guard lock(makers().mutex);
  makers().of_kind[kind] = std::move(maker);
}

DeviceGraphMaker lentDeviceGraphs(const std::string& kind) {
  const std::lock_guard lock(makers().mutex);
  const auto found = makers().of_kind.find(kind);
  return found == makers().of_kind.end() ? DeviceGraphMaker() : found->second;
}

}  // namespace abele
