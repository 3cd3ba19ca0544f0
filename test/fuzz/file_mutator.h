// Changes what is in a program file or an entry of the cache, as an error of a disk or somebody's hand would. What
// comes out is written with good checksums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "compile/compiled_program.h"
#include "files/program_file.h"
#include "mutator.h"

namespace abele::test {

class FileMutator {
 public:
  explicit FileMutator(std::mt19937_64& random) : random_(random) {}

  /// Changes one thing of the program.
  void operator()(compile::CompiledProgram& program) {
    switch (random_() % 12) {
      case 0: return change(program.optimizer);
      case 1: return change(program.input_types, [&](Type& type) { change(type); });
      case 2:
        return change(program.results, [&](compile::CompiledResult& r) { coin() ? change(r.target) : change(r.type); });
      case 3: return change(program.host_results, [&](at::Tensor& tensor) { change(tensor); });
      case 4:
        return change(program.written,
                      [&](compile::WrittenArgument& w) { coin() ? change(w.argument) : change(w.target); });
      case 5: return change(program.anchors, [&](compile::CompiledAnchor& anchor) { change(anchor); });
      case 6: return change(program.constants, [&](at::Tensor& tensor) { change(tensor); });
      case 7: return change(program.stages, [&](compile::CompiledStage& stage) { change(stage); });
      case 8: return change(program.groupings, [&](compile::ReplicaGrouping& grouping) { change(grouping); });
      case 9: return change(program.key);
      default: exe::mutate(program.executable, random_);
    }
  }

  /// Changes one thing of the file.
  void operator()(files::ProgramFile& file) {
    switch (random_() % 8) {
      case 0: return changeForm(file.form);
      case 1: return changeForm(file.result_form);
      case 2: return change(file.tensors, [&](files::SavedTensor& saved) { change(saved); });
      case 3: return changeState(file.optimizer_state);
      case 4: return change(file.rng_state);
      case 5: file.has_model = !file.has_model; return;
      case 6: return change(file.options);
      default: changeProgram(file.program);
    }
  }

  /// Changes bytes anywhere.
  void operator()(std::string& bytes) {
    static constexpr uint64_t kNumbers[] = {0,    1, 0x7f, 0x80, 0xff, 1 << 20, uint64_t{1} << 40, uint64_t{1} << 63,
                                            ~0ULL};
    const size_t at = random_() % bytes.size(), count = 1 + random_() % std::min<size_t>(16, bytes.size() - at);
    switch (random_() % 5) {
      case 0: bytes[at] ^= static_cast<char>(1 + random_() % 255); return;
      case 1: bytes.erase(at, count); return;
      case 2: bytes.insert(at, bytes.substr(random_() % bytes.size(), count)); return;
      case 3: bytes.resize(at); return;
      default: {
        const uint64_t number = kNumbers[random_() % std::size(kNumbers)];
        for (size_t i = 0; i < std::min<size_t>(8, bytes.size() - at); ++i)
          bytes[at + i] = static_cast<char>(number >> (8 * i));
      }
    }
  }

 private:
  bool coin() { return random_() % 2 == 0; }
  template <class T>
    requires(std::is_integral_v<T>)
  void change(T& value) {
    static constexpr int64_t kOthers[] = {-1, 0, 1, 2, 7, 64, int64_t{1} << 31, int64_t{1} << 40, INT64_MAX, INT64_MIN};
    value = static_cast<T>(coin() ? value + (coin() ? 1 : -1) : kOthers[random_() % std::size(kOthers)]);
  }
  void change(std::string& text) {
    if (text.empty() || coin())
      text += 'x';
    else
      text.resize(random_() % text.size());
  }
  void change(DType& type) {
    static constexpr DType kTypes[] = {DType::kUndefined, DType::kUInt8, DType::kInt64,  DType::kFloat16,
                                       DType::kFloat32,   DType::kBool,  DType::kFloat64};
    type = kTypes[random_() % std::size(kTypes)];
  }
  void change(Type& type) {
    if (coin()) return change(type.dtype);
    coin() ? change(type.sizes, [&](int64_t& n) { change(n); }) : change(type.strides, [&](int64_t& n) { change(n); });
  }
  void change(at::Tensor& tensor) {
    static constexpr at::ScalarType kTypes[] = {at::kByte, at::kLong, at::kHalf, at::kFloat, at::kBool};
    switch (random_() % 5) {
      case 0: tensor = at::Tensor(); return;
      case 1: tensor = at::zeros({}, kTypes[random_() % std::size(kTypes)]); return;
      case 2: tensor = at::zeros({static_cast<int64_t>(random_() % 70)}, kTypes[random_() % std::size(kTypes)]); return;
      case 3: tensor = at::zeros({0, 3}); return;
      default:
        if (tensor.defined()) tensor = at::zeros(tensor.sizes(), kTypes[random_() % std::size(kTypes)]);
    }
  }
  template <class T, class Fn>
  void change(std::vector<T>& list, Fn&& change_one) {
    if (list.empty()) {
      list.emplace_back();
      return;
    }
    const size_t at = random_() % list.size();
    switch (random_() % 6) {
      case 0: list.erase(list.begin() + static_cast<int64_t>(at)); return;
      case 1: list.push_back(list[at]); return;
      case 2: std::swap(list[at], list[random_() % list.size()]); return;
      default: change_one(list[at]);
    }
  }
  void change(compile::OptimizerSpec& optimizer) {
    using Kind = passes::OptimizerRules::Kind;
    passes::OptimizerRules& rules = optimizer.rules;
    switch (random_() % 7) {
      case 0: rules.kind = static_cast<Kind>(random_() % 6); return;
      case 1:
        if (!rules.group_of.empty()) change(rules.group_of.begin()->second);
        return;
      case 2: return change(rules.groups, [&](auto& group) { group.momentum = !group.momentum; });
      case 3: return change(rules.first_moment);
      case 4: rules.max_grad_norm = coin() ? 0 : -1; return;
      case 5: return change(optimizer.groups, [&](auto& values) { values.clear(); });
      default: rules.group_of["no such parameter"] = 0;
    }
  }
  void change(compile::CompiledAnchor& anchor) {
    switch (random_() % 4) {
      case 0: return change(anchor.target);
      case 1: return change(anchor.type);
      case 2: return change(anchor.updated);
      default: change(anchor.period);
    }
  }
  void change(compile::CompiledStage& stage) {
    switch (random_() % 3) {
      case 0: return change(stage.device);
      case 1: return change(stage.worker);
      default: change(stage.replica);
    }
  }
  void change(compile::ReplicaGrouping& grouping) {
    switch (random_() % 3) {
      case 0: return change(grouping.parameter);
      case 1: grouping.type = static_cast<compile::CommGroup>(random_() % 4); return;
      default: change(grouping.shards);
    }
  }
  void changeProgram(std::string& bytes) {
    compile::CompiledProgram program;
    try {
      program = compile::decodeProgram(bytes);
    } catch (const UserError&) {
      return;  // changed before, and refused
    }
    (*this)(program);
    bytes = compile::encode(program);
  }
  void change(files::SavedTensor& saved) {
    switch (random_() % 4) {
      case 0: return change(saved.name);
      case 1: saved.is_parameter = !saved.is_parameter; return;
      default: change(saved.tensor);
    }
  }
  void changeState(std::map<std::string, at::Tensor>& state) {
    if (state.empty() || random_() % 4 == 0) {
      state["no such state"] = at::zeros({2});
      return;
    }
    const auto it = std::next(state.begin(), static_cast<int64_t>(random_() % state.size()));
    coin() ? change(it->second) : static_cast<void>(state.erase(it));
  }
  void changeForm(std::string& form) {
    static constexpr std::string_view kSigns = "tt-=[]{}0123:ax";
    const size_t at = random_() % (form.size() + 1);
    const char sign = kSigns[random_() % kSigns.size()];
    if (at == form.size() || random_() % 3 == 0)
      form.insert(at, 1, sign);
    else if (coin())
      form[at] = sign;
    else
      form.erase(at, 1);
  }

  std::mt19937_64& random_;
};

}  // namespace abele::test
