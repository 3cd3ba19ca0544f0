#include "modules/frozen.h"

#include <algorithm>
#include <functional>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include "base/cat.h"
#include "base/error.h"
#include "options/notes.h"

namespace abele::modules {
namespace {

constexpr int64_t kAlways = 8;  // calls
constexpr int64_t kShare = 100;
constexpr int kNamed = 3;  // modules that one look names
constexpr char kCompile[] =
    ": the program goes on with what it was compiled with; to use the change, destroy() the model and call it again";

std::string nameOf(bool value) { return value ? "true" : "false"; }

std::string nameOf(at::Float32Op op) {
  return std::to_string(static_cast<int>(at::globalContext().float32Precision(at::Float32Backend::MKLDNN, op)));
}

std::string autocast() {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return "off";
  return c10::toString(at::autocast::get_autocast_dtype(at::kCPU));
}

/// A setting of torch that chooses kernels or the types of results.
struct SettingOfTorch {
  const char* name;
  std::string (*read)();
};
constexpr SettingOfTorch kSettings[] = {
    {"autocast of the CPU", autocast},
    {"c10::get_default_dtype()", [] { return std::string(c10::get_default_dtype().name()); }},
    {"at::globalContext().deterministicAlgorithms()",
     [] { return nameOf(at::globalContext().deterministicAlgorithms()); }},
    {"at::globalContext().userEnabledMkldnn()", [] { return nameOf(at::globalContext().userEnabledMkldnn()); }},
    {"the float32Precision of MKLDNN's products", [] { return nameOf(at::Float32Op::MATMUL); }},
    {"the float32Precision of MKLDNN's convolutions", [] { return nameOf(at::Float32Op::CONV); }},
    {"the float32Precision of MKLDNN's recurrent layers", [] { return nameOf(at::Float32Op::RNN); }},
    {"at::globalContext().userEnabledFlashSDP()", [] { return nameOf(at::globalContext().userEnabledFlashSDP()); }},
    {"at::globalContext().userEnabledMathSDP()", [] { return nameOf(at::globalContext().userEnabledMathSDP()); }},
};

std::vector<std::string> settingsNow() {
  std::vector<std::string> values;
  for (const SettingOfTorch& each : kSettings) values.push_back(each.read());
  return values;
}

/// The element of this name. at: its position if two lists have the same order; set to the position after it.
template <class List, class Name>
auto* named(List& list, const std::string& name, Name of, size_t& at) {
  const auto begin = list.begin() + static_cast<ptrdiff_t>(std::min(at, list.size()));
  const bool is_here = begin != list.end() && std::invoke(of, *begin) == name;
  const auto found = is_here ? begin : std::ranges::find(list, name, of);
  if (found == list.end()) return static_cast<decltype(&*found)>(nullptr);
  at = static_cast<size_t>(found - list.begin()) + 1;
  return &*found;
}

}  // namespace

Frozen::Frozen(const capture::Recording& recording, const std::vector<NamedTensor>& tensors,
               std::vector<ModuleKind> modules, bool training)
    : outside_(recording.outside), modules_(std::move(modules)), settings_(settingsNow()), training_(training) {
  for (const NamedTensor& each : tensors) {
    tensors_.push_back({each.name, each.tensor.unsafeGetTensorImpl(), each.trains});
    if (each.tensor.layout() != at::kStrided) continue;
    tensors_.back().sizes = each.tensor.sizes().vec();
    tensors_.back().strides = each.tensor.strides().vec();
  }
}

bool Frozen::isRestrided(const Tensor& was, const at::Tensor& now) {
  if (now.layout() != at::kStrided || now.sizes() != at::IntArrayRef(was.sizes)) return false;
  for (int64_t d = 0; d < now.dim(); ++d)
    if (now.size(d) > 1 && now.stride(d) != was.strides[static_cast<size_t>(d)]) return now.numel() > 0;
  return false;
}

bool Frozen::isDue() {
  began_ = Clock::now();
  return ++calls_ <= kAlways || began_ >= next_look_;
}

void Frozen::addChangesOf(const std::vector<NamedTensor>& tensors, std::vector<std::string>& found) const {
  size_t at = 0, kept = 0;
  int64_t others_trained = 0, num_restrided = 0;
  const NamedTensor *added = nullptr, *restrided = nullptr;
  for (const NamedTensor& now : tensors) {
    const Tensor* const was = named(tensors_, now.name, &Tensor::name, at);
    if (!was) {
      if (!added) added = &now;
      continue;
    }
    ++kept;
    if (was->identity != now.tensor.unsafeGetTensorImpl())
      found.push_back(cat(now.name,
                          " is another tensor now, and the devices go on with the one before: call "
                          "copyWeightsToDevice()"));
    if (training_ && was->is_trained != now.trains) ++others_trained;
    if (!isRestrided(*was, now.tensor)) continue;
    if (!restrided) restrided = &now;
    ++num_restrided;
  }
  if (restrided)
    found.push_back(cat(
        "the strides of ", restrided->name, num_restrided > 1 ? cat(" and ", num_restrided - 1, " other tensors") : "",
        " are others now, as after to(memory_format), and kernels add up in another order with them", kCompile));
  if (others_trained != 0)
    found.push_back(cat("requires_grad() of ", others_trained, " parameters is another one now", kCompile));
  if (added) found.push_back(cat(added->name, " was not there when the model was compiled", kCompile));
  if (kept < tensors_.size())
    found.push_back(cat("the module had ", tensors_.size(), " parameters and buffers when the model was compiled, and ",
                        tensors_.size() - kept, " of them are not there now", kCompile));
}

void Frozen::addChangesOf(const std::vector<ModuleKind>& modules, std::vector<std::string>& found) {
  if (modules == modules_) return;
  size_t at = 0, kept = 0;
  int changed = 0;
  for (const ModuleKind& now : modules) {
    const ModuleKind* const was = named(modules_, now.path, &ModuleKind::path, at);
    if (was) ++kept;
    if ((was && was->text == now.text) || !told_.insert(now.path).second) continue;
    if (++changed > kNamed) continue;  // train() and eval() change all of them
    const std::string name = now.path.empty() ? "the module" : cat("the module ", now.path);
    if (was)
      found.push_back(
          cat(name, " was ", was->text, " when the model was compiled, and is ", now.text, " now", kCompile));
    else
      found.push_back(cat(name, " was not there when the model was compiled", kCompile));
  }
  if (changed > kNamed)
    found.push_back(
        cat(changed - kNamed, " other modules are not what they were when the model was compiled", kCompile));
  if (kept < modules_.size())
    found.push_back(cat(modules_.size() - kept, " of the ", modules_.size(),
                        " modules that the model was compiled with are not there now", kCompile));
}

std::vector<std::string> Frozen::changes(const std::vector<NamedTensor>& tensors,
                                         const std::vector<ModuleKind>& modules) {
  std::vector<std::string> found;
  for (const capture::OutsideTensor& each : outside_) {
    const auto tensor = each.tensor.lock();
    if (tensor && tensor->version_counter().current_version() != each.version)
      found.push_back(cat("a tensor that is no parameter or buffer of the model, first used at ", each.line,
                          ", was written since the model was compiled", kCompile,
                          ", or pass the tensor as an argument, or register it as a buffer"));
  }
  addChangesOf(tensors, found);
  addChangesOf(modules, found);
  const std::vector<std::string> settings = settingsNow();
  for (size_t i = 0; i < settings.size(); ++i)
    if (settings[i] != settings_[i])
      found.push_back(cat(inLanguage(kSettings[i].name), " was ", settings_[i], " when the model was compiled, and is ",
                          settings[i], " now", kCompile));
  const Clock::time_point end = Clock::now();
  next_look_ = end + kShare * (end - began_);
  return found;
}

void Frozen::noteUpload(const std::vector<NamedTensor>& now) {
  size_t at = 0;
  for (const NamedTensor& each : now)
    if (Tensor* const own = named(tensors_, each.name, &Tensor::name, at))
      own->identity = each.tensor.unsafeGetTensorImpl();
}

void warnOfHeldResult(const capture::Recording& recording) {
  if (recording.held_result.empty()) return;
  options::note(
      log::Level::kWarn,
      cat("the program keeps a tensor that forward makes at ", recording.held_result,
          ": only the call that compiles does, and later calls neither find it there nor change it; return it, or "
          "copy it into a buffer (copy_)"));
}

}  // namespace abele::modules
