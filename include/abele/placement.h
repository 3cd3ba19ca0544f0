// For users of the library: where a model runs. placeModules makes blocks of modules by their paths and leaves forward
// as it is (read annotate.h first). wholeMachine measures which split of the machine is fastest.
//
//   abele::placeModules(net, {{"embedding", 0}, {"encoder", 1}, {"head", 2}});
//   abele::placeModules(net, {{"encoder", {0, 1}}, {"head", {2, 3}}});  // two devices share the work of a block
//   abele::placeModules(net, abele::layersPerIpu(net, "encoder.layer", {2, 3, -1}));
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "abele/annotate.h"
#include "abele/export.h"
#include "abele/forward.h"
#include "abele/options.h"

namespace abele {

/// The value of ExecutionStrategy::split_devices that wholeMachine() sets.
inline constexpr int kMeasuredDevices = -1;

/// The number of devices with the shortest measured step on this machine: one device with all threads, or more devices
/// with fewer threads each. These take the micro-batches in turn (Options::dataParallel), or, if they cannot, are a
/// pipeline with the cuts of autoSplit. Compiling runs the program a few times for each number, on copies of the
/// weights. The choice is stored beside the compiled programs (Options::enableExecutableCaching), or for the life of
/// the process. explain() lists the measured times. As in eager PyTorch, results depend on the number of threads of a
/// device, so two machines may differ in the last bits. The cuts of autoSplit(n) do not depend on the machine. Source:
/// ours.
ABELE_API PipelinedExecution wholeMachine();

/// The path of a submodule, as register_module builds it ("encoder.0"), and the index of its device.
using ModulePlacement = std::vector<std::pair<std::string, int>>;

/// The modules that placeModules places: a ModulePlacement, or paths with one device or several, as in
/// {{"embedding", 0}, {"mlp", {1, 2}}}.
class ModuleDevices {
 public:
  using List = std::vector<std::pair<std::string, DeviceList>>;
  ModuleDevices(std::initializer_list<List::value_type> modules) : list_(modules) {}
  ModuleDevices(const ModulePlacement& placement) : list_(placement.begin(), placement.end()) {}
  const List& list() const { return list_; }

 private:
  List list_;
};

namespace detail {
ABELE_API void placeModules(torch::nn::Module& module, const ModuleDevices& placement);
ABELE_API void placeScript(const torch::jit::Module& script, const ModuleDevices& placement);
ABELE_API ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                                       const std::vector<int>& layers_per_ipu, int first_ipu);
}  // namespace detail

/// Makes a block of each of these submodules, in models of `module` that are compiled from now on. C++ has no hooks for
/// calls of submodules, so a block starts at the first operation that reads a parameter or buffer of its module, and
/// lasts until another block starts. In nested modules the inner one's block is used. Earlier operations are in the
/// block of the first module of the list. If several modules share a tensor, a read of it belongs to the active block,
/// or to the next one. Under a pipelined strategy a block that ended never starts again: an operation that reads a
/// tensor of an earlier block (an embedding that shares the head's weights) stays in the active block. No block starts
/// inside an abele::Block in forward. Each call replaces the placements before it; an empty list removes all blocks.
/// Throws E0708 for an unknown path, and for a module without parameters and buffers.
template <detail::ModuleLike Module>
void placeModules(Module&& module, const ModuleDevices& placement) {
  if constexpr (detail::ScriptLike<Module>)
    detail::placeScript(detail::moduleOf(module), placement);
  else
    detail::placeModules(detail::weightsOf(module).module, placement);
}

/// Places the children of `layers` ("encoder.layer") in their order: the first layers_per_ipu[0] of them on device
/// first_ipu, and so on. Each -1 takes an equal share of the remaining layers; the last -1 also takes the remainder.
/// Throws E0708 if the numbers do not add up to the layers. Source: IPUConfig.layers_per_ipu.
template <detail::ModuleLike Module>
ModulePlacement layersPerIpu(Module&& module, const std::string& layers, const std::vector<int>& layers_per_ipu,
                             int first_ipu = 0) {
  return detail::layersPerIpu(detail::weightsOf(module).module, layers, layers_per_ipu, first_ipu);
}

}  // namespace abele
