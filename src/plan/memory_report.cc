#include "plan/memory_report.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "ir/rewrite.h"
#include "plan/liveness.h"
#include "plan/packing.h"

namespace abele::plan {
namespace {

constexpr const char* kGaps = "(between tensors)";
constexpr const char* kNoLayer = "(no layer)";

struct Tenant {
  size_t buffer = 0;
  int64_t offset_bytes = 0, bytes = 0;
};

// Divides a region among its tenants, whether or not they live at the same time: each byte goes to the largest tenant
// on it. Calls charge(buffer, bytes) for each tenant; returns the bytes without a tenant.
template <class Fn>
int64_t share(std::vector<Tenant> tenants, int64_t region_bytes, Fn&& charge) {
  std::ranges::stable_sort(tenants, [](const Tenant& a, const Tenant& b) { return a.bytes > b.bytes; });
  std::map<int64_t, int64_t> free{{0, region_bytes}};  // begin -> end
  int64_t left = region_bytes;
  for (const Tenant& t : tenants) {
    const int64_t begin = t.offset_bytes, end = t.offset_bytes + alignUp(t.bytes);
    int64_t taken = 0;
    auto it = free.upper_bound(begin);
    if (it != free.begin()) --it;
    while (it != free.end() && it->first < end) {
      const auto [from, to] = *it;
      const int64_t a = std::max(from, begin), b = std::min(to, end);
      if (a >= b) {
        ++it;
        continue;
      }
      taken += b - a;
      it = free.erase(it);
      if (from < a) free.emplace(from, a);
      if (b < to) it = free.emplace(b, to).first;
    }
    left -= taken;
    if (taken > 0) charge(t.buffer, taken);
  }
  return left;
}

// Turns "encoder.layer.3.weight" into "encoder/layer/3", the spelling of scopes.
std::string moduleOf(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  std::string path = dot == std::string::npos ? "" : parameter.substr(0, dot);
  std::ranges::replace(path, '.', '/');
  return path;
}

// Finds the module that a scope means. A scope leaves out containers that are never called ("encoder/3" for
// "encoder/layer/3"). The parameters show the full path, if only one path fits.
struct Layers {
  std::vector<std::vector<std::string>> modules;
  std::set<std::vector<std::string>> paths;                     // the modules' paths
  std::unordered_map<std::string, std::vector<size_t>> having;  // name in a path -> modules with that name, in order
  mutable std::map<std::string, std::string> layer_of_scope;

  explicit Layers(const ir::Graph& graph) {
    std::set<std::string> found;
    for (const ir::External& external : graph.externals) {
      if (external.kind != ir::InputKind::kParameter && external.kind != ir::InputKind::kBuffer) continue;
      const std::string path = moduleOf(external.name);
      for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1))
        found.insert(path.substr(0, end));
      if (!path.empty()) found.insert(path);
    }
    for (const std::string& path : found) modules.push_back(split(path));
    paths.insert(modules.begin(), modules.end());
    for (size_t m = 0; m < modules.size(); ++m)
      for (const std::string& name : std::set(modules[m].begin(), modules[m].end())) having[name].push_back(m);
  }

  // The modules that could be meant: those with the rarest of these names.
  const std::vector<size_t>& candidates(const std::vector<std::string>& names) const {
    static const std::vector<size_t> none;
    const std::vector<size_t>* fewest = nullptr;
    for (const std::string& name : names) {
      const auto it = having.find(name);
      if (it == having.end()) return none;
      if (!fewest || it->second.size() < fewest->size()) fewest = &it->second;
    }
    return *fewest;
  }

  static std::vector<std::string> split(const std::string& path) {
    std::vector<std::string> parts{""};
    for (const char c : path) {
      if (c == '/' || c == '.')
        parts.emplace_back();
      else
        parts.back() += c;
    }
    return parts;
  }

  static std::string join(const std::vector<std::string>& parts) {
    std::string path;
    for (const std::string& part : parts) path += (path.empty() ? "" : "/") + part;
    return path;
  }

  // Whether the module ends in the last of these names and contains the others before it, in the same order.
  static bool isMeant(const std::vector<std::string>& names, const std::vector<std::string>& module) {
    if (names.back() != module.back()) return false;
    auto at = module.begin();
    for (const std::string& name : names) {
      at = std::find(at, module.end(), name);
      if (at == module.end()) return false;
      ++at;
    }
    return true;
  }

  std::string of(const std::string& scope) const {
    const std::vector<std::string> names = split(scope);
    for (size_t count = names.size(); count > 0; --count) {
      const std::vector<std::string> leading(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(count));
      if (paths.contains(leading)) return join(names);
      const std::vector<std::string>* found = nullptr;
      size_t matches = 0;
      for (size_t m : candidates(leading)) {
        if (!isMeant(leading, modules[m])) continue;
        ++matches;
        found = &modules[m];
      }
      if (matches > 1) return join(names);
      if (matches == 0) continue;
      std::vector<std::string> whole = *found;
      whole.insert(whole.end(), names.begin() + static_cast<std::ptrdiff_t>(count), names.end());
      return join(whole);
    }
    return join(names);
  }
};

class Reporter {
 public:
  Reporter(const ir::Graph& graph, const Plan& plan)
      : graph_(graph),
        plan_(plan),
        liveness_(analyseLiveness(graph, plan.options, plan.schedule)),
        position_(ir::positionsById(graph)),
        layers_(graph) {
    for (size_t b = 0; b < liveness_.buffers.size(); ++b) sort(b);
  }

  MemoryReport run(size_t num_tensors) {
    MemoryReport report;
    for (size_t w = 0; w < plan_.device_of.size(); ++w) {
      device_ = {.device = plan_.device_of[w]};
      row_of_.clear();
      addPersistent(w);
      addStash(w);
      addRings(w);
      addTransient(w);
      addFetched(w);
      for (const OffChipGroup& group : plan_.off_chip)
        if (plan_.worker_of[group.stage] == static_cast<int>(w))
          device_.off_chip_bytes +=
              group.bytes * (group.use == TensorUse::kActivations ? plan_.frames[group.stage] : 1);
      for (const LayerMemory& layer : device_.layers)
        for (size_t c = 0; c < kNumMemoryClasses; ++c) device_.by_class[c] += layer.bytes[c];
      device_.peak_bytes = std::accumulate(device_.by_class.begin(), device_.by_class.end(), int64_t{0});
      std::ranges::stable_sort(device_.tensors, std::greater(), &TensorMemory::bytes);
      if (device_.tensors.size() > num_tensors) device_.tensors.resize(num_tensors);
      report.devices.push_back(std::move(device_));
    }
    return report;
  }

 private:
  const Placement& homeOf(size_t buffer) const { return plan_.placement[liveness_.buffers[buffer].members.front()]; }

  void sort(size_t b) {
    const Buffer& buffer = liveness_.buffers[b];
    if (buffer.members.empty() || buffer.touches.empty()) return;
    const Placement& home = homeOf(b);
    const Tenant tenant{b, home.offset_bytes, buffer.bytes};
    if (home.home == Home::kNone || home.home == Home::kInput) return;
    if (home.off_chip >= 0)
      off_chip_[home.off_chip].push_back(tenant);
    else if (home.home == Home::kPersistent)
      persistent_[plan_.worker_of[home.stage]].push_back(tenant);
    else if (home.home == Home::kStash)
      stash_[home.stage].push_back(tenant);
    else if (home.home == Home::kRing)
      rings_[home.ring].push_back(tenant);
    else
      transient_[buffer.touches.front().task].push_back(tenant);
  }

  void addPersistent(size_t worker) {
    auto it = persistent_.find(static_cast<int>(worker));
    if (it == persistent_.end()) return;
    for (const Tenant& t : it->second) charge(t.buffer, alignUp(t.bytes), 1);
  }

  void addStash(size_t worker) {
    for (const auto& [stage, tenants] : stash_)
      if (plan_.worker_of[stage] == static_cast<int>(worker))
        chargeShared(tenants, plan_.stash_bytes[stage], plan_.frames[stage], MemoryClass::kStash);
  }

  void addRings(size_t worker) {
    for (const auto& [index, tenants] : rings_) {
      const TaskRing& ring = plan_.rings[index];
      if (plan_.worker_of[ring.task.stage] != static_cast<int>(worker)) continue;
      if (ring.is_received)
        for (const Tenant& t : tenants) charge(t.buffer, alignUp(t.bytes), ring.frames);
      else
        chargeShared(tenants, ring.bytes, ring.frames, MemoryClass::kStash);
    }
  }

  // A worker's transient memory belongs to the task that needs the most; the other tasks run in the same memory.
  void addTransient(size_t worker) {
    const std::vector<Tenant>* fullest = nullptr;
    int64_t most = 0;
    for (const auto& [task, tenants] : transient_) {
      if (plan_.worker_of[task.stage] != static_cast<int>(worker)) continue;
      int64_t bytes = 0;
      for (const Tenant& t : tenants) bytes = std::max(bytes, t.offset_bytes + alignUp(t.bytes));
      if (bytes > most) {
        most = bytes;
        fullest = &tenants;
      }
    }
    ABELE_CHECK(most == plan_.transient_bytes[worker], "worker ", worker, " needs ", most, " transient bytes, not ",
                plan_.transient_bytes[worker]);
    if (fullest) chargeShared(*fullest, most, plan_.turns(), MemoryClass::kTransient);
  }

  void addFetched(size_t worker) {
    const std::vector<int64_t> frames = fetchedFrames(plan_, worker);
    for (const auto& [group, tenants] : off_chip_) {
      if (frames[group] == 0) continue;
      if (plan_.off_chip[group].use == TensorUse::kActivations)
        chargeShared(tenants, plan_.off_chip[group].bytes, frames[group], MemoryClass::kStash);
      else
        for (const Tenant& t : tenants) charge(t.buffer, alignUp(t.bytes), 1);
    }
  }

  void chargeShared(const std::vector<Tenant>& tenants, int64_t bytes, int64_t frames, MemoryClass memory_class) {
    for (const Tenant& t : tenants) {
      TensorMemory tensor = tensorOf(t.buffer);
      tensor.frames = frames;
      tensor.bytes = alignUp(t.bytes) * frames;
      device_.tensors.push_back(std::move(tensor));
    }
    const int64_t gaps = share(tenants, bytes, [&](size_t buffer, int64_t share_bytes) {
      rowOf(layerOf(buffer)).bytes[static_cast<size_t>(memory_class)] += share_bytes * frames;
    });
    if (gaps > 0) rowOf(kGaps).bytes[static_cast<size_t>(memory_class)] += gaps * frames;
  }

  void charge(size_t buffer, int64_t bytes, int64_t frames) {
    TensorMemory tensor = tensorOf(buffer);
    tensor.frames = frames;
    tensor.bytes = bytes * frames;
    rowOf(tensor.layer).bytes[static_cast<size_t>(tensor.memory_class)] += tensor.bytes;
    device_.tensors.push_back(std::move(tensor));
  }

  LayerMemory& rowOf(std::string layer) {
    if (layer.empty()) layer = kNoLayer;
    auto [it, is_new] = row_of_.emplace(layer, device_.layers.size());
    if (is_new) device_.layers.push_back({.layer = layer});
    return device_.layers[it->second];
  }

  // --- names ---------------------------------------------------------------------------------------------------------
  const ir::Node* makerOf(size_t buffer) const {
    const ir::NodeId def = graph_.values[liveness_.buffers[buffer].members.front()].def;
    return def == ir::kNone ? nullptr : &graph_.nodes[position_[def]];
  }

  const ir::External* externalOf(size_t buffer) const {
    const int32_t input = liveness_.buffers[buffer].input;
    return input < 0 ? nullptr : &graph_.externals[graph_.inputs[input].external];
  }

  std::string layerOf(size_t buffer) const {
    if (const ir::External* external = externalOf(buffer)) {
      if (external->owner != ir::kNone) return moduleOf(graph_.externals[external->owner].name);
      const bool is_named = external->kind == ir::InputKind::kParameter || external->kind == ir::InputKind::kBuffer;
      return is_named ? moduleOf(external->name) : "";
    }
    const ir::Node* node = makerOf(buffer);
    if (!node) return "";
    if (node->scope.empty() && node->block != ir::kNone) return graph_.blocks[node->block].user_id;
    auto [it, is_new] = layers_.layer_of_scope.emplace(node->scope, "");
    if (is_new) it->second = layers_.of(node->scope);
    return it->second;
  }

  static MemoryClass classOf(ir::InputKind kind) {
    switch (kind) {
      case ir::InputKind::kParameter: return MemoryClass::kWeights;
      case ir::InputKind::kAccumulator: return MemoryClass::kAccumulators;
      case ir::InputKind::kState: return MemoryClass::kOptimizerState;
      default: return MemoryClass::kConstants;
    }
  }

  TensorMemory tensorOf(size_t buffer) const {
    const ir::ValueId first = liveness_.buffers[buffer].members.front();
    const Placement& home = homeOf(buffer);
    TensorMemory tensor{.type = graph_.values[first].type, .stage = home.stage, .layer = layerOf(buffer)};
    if (const ir::External* external = externalOf(buffer)) {
      tensor.name = external->name;
      tensor.memory_class = classOf(external->kind);
      // An input has no maker, so it gets the line where the program first uses it.
      for (const Touch& t : liveness_.buffers[buffer].touches)
        if (tensor.source.empty() && t.position >= 0 && t.position != kTaskEnd)
          tensor.source = graph_.nodes[t.position].source;
      return tensor;
    }
    tensor.memory_class = liveness_.buffers[buffer].is_received ? MemoryClass::kReceived
                          : home.home == Home::kTransient       ? MemoryClass::kTransient
                                                                : MemoryClass::kStash;
    if (const ir::Node* node = makerOf(buffer)) {
      tensor.name = node->op;
      tensor.source = node->source;
    }
    return tensor;
  }

  const ir::Graph& graph_;
  const Plan& plan_;
  Liveness liveness_;
  std::vector<int32_t> position_;  // position of each node, by id
  Layers layers_;
  std::map<int, std::vector<Tenant>> persistent_, stash_;  // by worker, by stage
  std::map<int32_t, std::vector<Tenant>> rings_;           // by index into Plan::rings
  std::map<Task, std::vector<Tenant>> transient_;
  std::map<size_t, std::vector<Tenant>> off_chip_;  // by index into Plan::off_chip
  DeviceMemory device_;
  std::map<std::string, size_t> row_of_;
};

}  // namespace

const char* memoryClassName(MemoryClass memory_class) {
  static constexpr const char* kNames[] = {"weights", "optimizer state", "accumulators", "constants and buffers",
                                           "stash",   "transient",       "received"};
  return kNames[static_cast<size_t>(memory_class)];
}

int64_t LayerMemory::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

MemoryReport reportMemory(const ir::Graph& graph, const Plan& plan, size_t num_tensors) {
  return Reporter(graph, plan).run(num_tensors);
}

int64_t spareBytes(const std::vector<int>& devices, const std::vector<int64_t>& peak_bytes,
                   const MemoryLimits& limits) {
  int64_t spare = std::numeric_limits<int64_t>::max();
  for (size_t w = 0; w < devices.size(); ++w) spare = std::min(spare, limits.spare(devices[w], peak_bytes[w]));
  return spare;
}

}  // namespace abele::plan
