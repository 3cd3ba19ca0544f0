#include "model/frozen.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include "base/cat.h"

namespace abele::host {
namespace {

constexpr int64_t kAlways = 8;  // calls
constexpr int64_t kShare = 100;
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

/// Of torch, which choose kernels or the types of results.
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

}  // namespace

Frozen::Frozen(const capture::Recording& recording, const std::vector<NamedTensor>& tensors, bool training)
    : outside_(recording.outside), settings_(settingsNow()), training_(training) {
  for (const NamedTensor& each : tensors)
    tensors_.push_back({each.name, each.tensor.unsafeGetTensorImpl(), each.trains});
}

bool Frozen::isDue() {
  began_ = Clock::now();
  return ++calls_ <= kAlways || began_ >= next_look_;
}

std::vector<std::string> Frozen::changes(const std::vector<NamedTensor>& now) {
  std::vector<std::string> found;
  for (const capture::OutsideTensor& each : outside_) {
    const auto tensor = each.tensor.lock();
    if (tensor && tensor->version_counter().current_version() != each.version)
      found.push_back(cat("a tensor that is no parameter or buffer of the model, first used at ", each.line,
                          ", was written since the model was compiled", kCompile,
                          ", or pass the tensor as an argument, or register it as a buffer"));
  }
  int64_t others_trained = 0;
  for (size_t i = 0; i < std::min(now.size(), tensors_.size()); ++i) {
    const Tensor& was = tensors_[i];
    if (was.name != now[i].name) break;  // the module has other parts
    if (was.identity != now[i].tensor.unsafeGetTensorImpl())
      found.push_back(cat(was.name,
                          " is another tensor now, and the devices go on with the one before: call "
                          "copyWeightsToDevice()"));
    if (training_ && was.is_trained != now[i].trains) ++others_trained;
  }
  if (others_trained != 0)
    found.push_back(cat("requires_grad() of ", others_trained, " parameters is another one now", kCompile));
  const std::vector<std::string> settings = settingsNow();
  for (size_t i = 0; i < settings.size(); ++i)
    if (settings[i] != settings_[i])
      found.push_back(cat(kSettings[i].name, " was ", settings_[i], " when the model was compiled, and is ",
                          settings[i], " now", kCompile));
  const Clock::time_point end = Clock::now();
  next_look_ = end + kShare * (end - began_);
  return found;
}

void Frozen::noteUpload(const std::vector<NamedTensor>& now) {
  for (size_t i = 0; i < std::min(now.size(), tensors_.size()); ++i)
    if (tensors_[i].name == now[i].name) tensors_[i].identity = now[i].tensor.unsafeGetTensorImpl();
}

}  // namespace abele::host
