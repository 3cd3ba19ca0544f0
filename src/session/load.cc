// From an executable to a device that is ready to run it.
#include <algorithm>
#include <set>
#include <unordered_map>

#include <malloc.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/joined.h"
#include "base/log.h"
#include "compile/device_list.h"
#include "compile/tensors.h"
#include "memory/offload.h"
#include "session/impl.h"

namespace abele::session {
namespace {

// If the devices need at least this much memory, loading first returns the free memory of the C library to the system.
constexpr int64_t kTrimmedBytes = int64_t{64} << 20;

/// Capture, and each trial of a placement, ran the whole model. The C library keeps that memory for later blocks, but
/// devices map memory of their own.
void trimForDevices(const exe::Executable& executable) {
  int64_t device_bytes = exe::offChipBytes(executable);
  for (size_t w = 0; w < executable.workers.size(); ++w)
    device_bytes += exe::residentBytes(executable, static_cast<int32_t>(w));
  if (device_bytes >= kTrimmedBytes) malloc_trim(0);
}

/// The model's tensors by external index.
std::vector<at::Tensor*> matchModel(const exe::Executable& executable, const std::vector<capture::ModelTensor>& model) {
  std::unordered_map<std::string, at::Tensor*> by_name;
  for (const capture::ModelTensor& m : model) by_name.emplace(m.name, m.tensor);
  std::vector<at::Tensor*> matched(executable.externals.size(), nullptr);
  for (size_t i = 0; i < matched.size(); ++i) {
    const exe::External& external = executable.externals[i];
    if (external.kind != exe::ExternalKind::kParameter && external.kind != exe::ExternalKind::kBuffer) continue;
    auto found = by_name.find(external.name);
    ABELE_CHECK(found != by_name.end(), "external ", external.name, " is no tensor of the model");
    matched[i] = found->second;
  }
  return matched;
}

/// Asks for the tensors of the model that are on the meta device and that this process needs: those that its devices
/// have, and in the first process those that no device has, which are part of what it saves.
void materializeModel(const Compiled& compiled, const compile::ProgramOptions& options) {
  std::unordered_map<const at::Tensor*, bool> is_here;
  for (size_t i = 0; i < compiled.model_of.size(); ++i)
    if (compiled.model_of[i] && compiled.executable.externals[i].slot >= 0)
      is_here[compiled.model_of[i]] |= isHere(compiled, i, options);
  const bool takes_unused = compiled.meta.materialize && options.processes.index == 0;
  std::vector<size_t> needed;
  for (size_t i = 0; i < compiled.model.size(); ++i) {
    const at::Tensor& tensor = *compiled.model[i].tensor;
    if (!tensor.defined() || !tensor.is_meta()) continue;
    const auto used = is_here.find(&tensor);
    if (used != is_here.end() ? used->second : takes_unused) needed.push_back(i);
  }
  if (needed.empty()) return;
  if (compiled.meta.materialize) compiled.meta.materialize(needed);
  trimForDevices(compiled.executable);  // an initialiser draws all tensors, and the C library kept those of others
  for (const size_t i : needed)
    ABELE_REQUIRE(!compiled.model[i].tensor->is_meta(), E0708,
                  {.what = cat(compiled.model[i].name, " is on the meta device, and has no contents"),
                   .found = cat(compile::typeOf(*compiled.model[i].tensor).str(), " without memory"),
                   .expected = "a tensor with contents, or files that have them",
                   .remedy = inLanguage("abele::loadWeights(path, model) or abele::initWeights(model, seed) before the "
                                        "first call")});
}

/// The type of the tensor without the dimension of the groups of replicas; undefined if it lacks that.
Type typeOfValue(const Compiled& compiled, size_t external, const at::Tensor& host) {
  Type own = compile::typeOf(host);
  if (const size_t count = compiled.slices[external].replica.size(); count > 0) {
    if (own.sizes.empty() || own.sizes[0] != static_cast<int64_t>(count)) return {};
    own.sizes.erase(own.sizes.begin());
    own.strides.erase(own.strides.begin());
  }
  return own;
}

/// Strides of dimensions with one element do not matter.
bool areAlike(const Type& a, const Type& b) {
  if (a.sizes != b.sizes) return false;
  for (size_t d = 0; d < a.sizes.size(); ++d)
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

/// Whether the tensor has the type that the program was compiled for. The devices have the memory of a tensor with gaps
/// as a whole, where its elements have to lie as they did.
bool fits(const Compiled& compiled, size_t external, const at::Tensor& host) {
  const Type& type = compiled.executable.slots[compiled.executable.externals[external].slot].type;
  const Type own = typeOfValue(compiled, external, host);
  if (own.dtype != type.dtype) return false;
  if (own.sizes == type.sizes) return own.sizes == compiled.type_of[external].sizes;
  return type.sizes.size() == 1 && own.extentBytes() == type.extentBytes() && areAlike(own, compiled.type_of[external]);
}

bool isToBeUploaded(const Compiled& compiled, size_t external) {
  const at::Tensor* host = compiled.model_of[external];
  return host && compiled.executable.externals[external].slot >= 0 && !host->is_meta();
}

void setLossScaling(Compiled& compiled, double loss_scaling) {
  if (!compiled.unscaled_loss_gradient.defined()) {
    for (const int32_t i : exe::externalsOf(compiled.executable, exe::ExternalKind::kConstant))
      if (compiled.executable.externals[i].name == capture::kLossGradient) compiled.loss_gradient = i;
    if (compiled.loss_gradient < 0) return;
    // While the constants are here: asking the device may ask another process, which may be elsewhere.
    const at::Tensor& constant = compiled.constants.at(compiled.loss_gradient);
    compiled.unscaled_loss_gradient = memoryOf(compiled, static_cast<size_t>(compiled.loss_gradient), constant).clone();
  }
  compiled.backend->upload(compiled.loss_gradient, compiled.unscaled_loss_gradient.mul(loss_scaling));
}

/// What this process computes on, each device once.
std::string devicesUsed(const exe::Executable& executable, const std::vector<c10::Device>& by_space,
                        int64_t stage_process) {
  std::set<int32_t> spaces;
  for (const exe::WorkerProgram& worker : executable.workers)
    if (!worker.isLink() && worker.process == stage_process) spaces.insert(worker.space);
  return joined(spaces, [&](int32_t space) { return by_space[static_cast<size_t>(space) % by_space.size()].str(); });
}

}  // namespace

int threadsPerDevice(const compile::ProgramOptions& options, const exe::Executable& executable) {
  return compile::threadsPerDevice(options, executable.numComputing() / executable.stage_processes);
}

bool isHere(const Compiled& compiled, size_t external, const compile::ProgramOptions& options) {
  const exe::Executable& executable = compiled.executable;
  const int64_t own = options.processes.index % options.processes.stages;
  const exe::External& what = executable.externals[external];
  const auto isOwn = [&](int32_t slot) {
    const int32_t process = executable.processOf(executable.slots[slot].group);
    return process < 0 || process == own;
  };
  return what.slot >= 0 && (isOwn(what.slot) || std::ranges::any_of(what.replica_slots, isOwn) ||
                            std::ranges::any_of(what.copies, [&](const exe::ExternalCopy& copy) {
                              return std::ranges::any_of(copy.slots, isOwn);
                            }));
}

void requireFits(const Compiled& compiled, size_t external, const at::Tensor& host) {
  const exe::External& what = compiled.executable.externals[external];
  compile::requireMemory(host, what.name);
  ABELE_REQUIRE(fits(compiled, external, host), E0704,
                {.what = cat(what.name, " differs from the tensor that the model was compiled with"),
                 .found = compile::typeOf(host).str(),
                 .expected = compiled.executable.slots[what.slot].type.str(),
                 .remedy = "call destroy() before the next call, so that the model is compiled again"});
}

void uploadTensor(Compiled& compiled, size_t external) {
  const at::Tensor& host = *compiled.model_of[external];
  const bool is_shared =
      compiled.shared && compiled.slices[external].replica.empty() && compiled.shared->place(external, host);
  uploadSlices(compiled, external, host);
  is_shared ? compiled.weight_watch.forget(external) : compiled.weight_watch.note(external, host);
  memory::releaseIfOffloaded(host);
}

void uploadModel(Compiled& compiled) {
  // Before the first of them: an error leaves the devices as they were.
  for (size_t i = 0; i < compiled.model_of.size(); ++i)
    if (isToBeUploaded(compiled, i)) requireFits(compiled, i, *compiled.model_of[i]);
  if (compiled.shared) compiled.shared->lookAgain();
  for (size_t i = 0; i < compiled.model_of.size(); ++i)
    if (isToBeUploaded(compiled, i)) uploadTensor(compiled, i);
}

void followModel(Compiled& compiled, bool requires_fit) {
  if (!compiled.shared) return;
  const std::vector<size_t> elsewhere = compiled.shared->elsewhere(compiled.model_of);
  if (elsewhere.empty()) return;
  std::vector<size_t> followed;
  for (const size_t i : elsewhere) {
    if (!isToBeUploaded(compiled, i)) continue;
    if (requires_fit) requireFits(compiled, i, *compiled.model_of[i]);
    if (fits(compiled, i, *compiled.model_of[i])) followed.push_back(i);
  }
  compiled.shared->lookAgain();
  for (const size_t i : followed) uploadTensor(compiled, i);
}

void warnOfEdits(Compiled& compiled) {
  if (compiled.warned_of_edits) return;
  const int64_t edited = compiled.weight_watch.firstEdited(compiled.model_of);
  if (edited < 0) return;
  compiled.warned_of_edits = true;
  log::warn(compiled.executable.externals[edited].name,
            " of the model was written after it was copied to the device, which does not see that: call ",
            inLanguage("model.copyWeightsToDevice()"), " after such writes");
}

at::Tensor memoryOf(const Compiled& compiled, size_t index, const at::Tensor& host) {
  const Type& type = compiled.executable.slots[compiled.executable.externals[index].slot].type;
  if (host.sizes() == at::IntArrayRef(type.sizes)) return host;
  return host.detach().as_strided(type.sizes, type.strides, host.storage_offset());
}

void setHypers(Compiled& compiled, const compile::OptimizerSpec& optimizer) {
  const double loss_scaling = optimizer.loss_scaling * compiled.loss_scale_factor;
  for (size_t group = 0; group < optimizer.groups.size(); ++group) {
    compiled.backend->setHyper(static_cast<int>(group), "libtorch", 0);  // an optimizer of before may have had it
    for (const auto& [name, value] : optimizer.groups[group])
      compiled.backend->setHyper(static_cast<int>(group), name, value);
    compiled.backend->setHyper(static_cast<int>(group), "gradient_scale", 1 / loss_scaling);
  }
  setLossScaling(compiled, loss_scaling);
}

void load(Compiled& compiled, const compile::ProgramOptions& options, const at::Generator& generator) {
  const exe::Executable& executable = compiled.executable;
  trimForDevices(executable);
  device::DeviceOptions device;
  device.threads_per_device = threadsPerDevice(options, executable);
  device.floating_point_exceptions = options.floating_point_exceptions;
  device.stochastic_rounding = options.stochastic_rounding;
  device.rounding_seed = generator.current_seed();
  if (options.auto_loss_scaling) device.gradient_edge = options.loss_scale_edge * 65504;
  device.off_chip_memory_limit = options.off_chip_memory_limit;
  device.off_chip_folder = options.off_chip_folder;
  device.process = options.processes.index / options.processes.stages;
  device.stage_process = options.processes.index % options.processes.stages;
  device.peers = compiled.peers;
  setReaders(compiled, options);
  device.readers = compiled.readers;
  device.watch = compiled.watch;
  device.device_graphs = options.device_graphs;
  device.has_own_weights_alone = compiled.has_own_weights_alone;
  const bool is_cpu = compile::captureDevice(options).is_cpu();
  if (!is_cpu) {
    const std::vector<c10::Device> by_space = compile::devicesBySpace(options);
    device.accelerator = joined(by_space, &c10::Device::str, ",");
    if (options.processes.count > 1)
      log::info("process ", options.processes.index, " runs on ",
                devicesUsed(executable, by_space, device.stage_process));
  }
  // A row of device/backends.def.
  compiled.backend = device::makeBackend(is_cpu ? "cpu" : "accelerator", executable, device);
  compiled.model_of = matchModel(executable, compiled.model);
  compiled.slices = slicesOf(executable, compiled.groupings);
  compiled.type_of.assign(compiled.model_of.size(), {});
  for (size_t i = 0; i < compiled.model_of.size(); ++i)
    if (const at::Tensor* host = compiled.model_of[i]) compiled.type_of[i] = typeOfValue(compiled, i, *host);
  compiled.written_by_forward.clear();
  for (size_t i = 0; i < executable.externals.size(); ++i) {
    const exe::ExternalKind kind = executable.externals[i].kind;
    const bool is_forward =
        kind == exe::ExternalKind::kBuffer || (kind == exe::ExternalKind::kParameter && !options.training);
    if (is_forward && compiled.backend->writes(static_cast<int32_t>(i))) compiled.written_by_forward.push_back(i);
  }
  materializeModel(compiled, options);
  if (options.share_weights) compiled.shared.emplace(*compiled.backend, options.weights_owner, options.training);
  uploadModel(compiled);
  for (const int32_t i : exe::externalsOf(executable, exe::ExternalKind::kConstant))
    compiled.backend->upload(i, memoryOf(compiled, i, compiled.constants.at(i)));
  setHypers(compiled, compiled.optimizer);
  compiled.backend->setGenerator(generator);
  std::vector<device::OwnStream> own;
  for (const capture::OwnStream& stream : compiled.own_streams)
    own.push_back({stream.generator, stream.start, stream.restarts, stream.draws, stream.normals});
  compiled.backend->setOwnStreams(std::move(own));
  compiled.runtime = std::make_unique<runtime::Runtime>(executable, *compiled.backend, device.stage_process);
  compiled.constants.clear();
}

}  // namespace abele::session
