// Hand-made executables and a loop that runs them, for tests of devices.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/backend.h"
#include "exe/executable.h"

namespace abele::device::testing {

inline Type typeOf(const at::Tensor& tensor) {
  return {static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec()};
}

inline Type f32(std::vector<int64_t> sizes) { return contiguousType(DType::kFloat32, std::move(sizes)); }

inline Arg number(double value) {
  Arg arg = Arg::real(value);
  arg.kind = Arg::Kind::kNumber;
  arg.number_kind = Arg::Kind::kDouble;
  return arg;
}

inline Arg boolList(std::vector<int64_t> values) {
  Arg arg = Arg::intList(std::move(values));
  arg.kind = Arg::Kind::kBoolList;
  return arg;
}

inline Arg randomStream() {
  Arg arg;
  arg.kind = Arg::Kind::kGenerator;
  return arg;
}

/// One worker, one segment per stage; slots are laid out one after the other.
struct Program {
  exe::Executable executable;
  int32_t weights, values;

  explicit Program(int64_t micro_batches = 1, int32_t frames = 1) {
    executable.micro_batches = executable.accumulation = micro_batches;
    weights = group(exe::GroupKind::kPersistent, 1, "weights");
    values = group(exe::GroupKind::kStash, frames, "values");
    executable.segments.push_back({0, exe::Direction::kForward, "fwd/0", {}});
    executable.segments.push_back({0, exe::Direction::kUpdate, "update", {}});
    exe::WorkerProgram worker;
    for (int32_t k = 0; k < micro_batches; ++k) worker.actions.push_back({0, k, {}});
    worker.actions.push_back({1, static_cast<int32_t>(micro_batches) - 1, {}});
    executable.workers.push_back(worker);
  }

  int32_t group(exe::GroupKind kind, int32_t frames, std::string name) {
    executable.groups.push_back({.kind = kind, .frames = frames, .name = std::move(name)});
    return static_cast<int32_t>(executable.groups.size()) - 1;
  }
  int32_t slot(int32_t group, Type type) {
    exe::Group& home = executable.groups[group];
    const int64_t offset = home.frame_bytes;
    home.frame_bytes += (type.extentBytes() + 63) / 64 * 64;
    return slotAt(group, offset, std::move(type));
  }
  int32_t slotAt(int32_t group, int64_t offset_bytes, Type type) {
    executable.slots.push_back({group, offset_bytes, std::move(type), {}});
    return static_cast<int32_t>(executable.slots.size()) - 1;
  }
  int32_t value(Type type) { return slot(values, std::move(type)); }
  // Adds a tensor of the caller: a group without bytes.
  int32_t input(Type type) {
    const auto frames = static_cast<int32_t>(executable.micro_batches);
    executable.input_slots.push_back(slotAt(group(exe::GroupKind::kInput, frames, "input"), 0, std::move(type)));
    return executable.input_slots.back();
  }
  int32_t output(Type type) {
    const auto frames = static_cast<int32_t>(executable.micro_batches);
    executable.output_slots.push_back(slotAt(group(exe::GroupKind::kOutput, frames, "output"), 0, std::move(type)));
    return executable.output_slots.back();
  }
  /// A view of a slot.
  int32_t viewOf(int32_t whole, int64_t offset_bytes, Type type) {
    const exe::Slot& of = executable.slots[whole];
    return slotAt(of.group, of.offset_bytes + offset_bytes, std::move(type));
  }
  /// A persistent tensor; its external index is the order of these calls.
  int32_t external(Type type, exe::ExternalKind kind, double initial = 0) {
    const int32_t id = slot(weights, std::move(type));
    executable.externals.push_back({"external" + std::to_string(executable.externals.size()), kind, id, -1, initial});
    return id;
  }
  exe::Instruction& op(std::string name, std::vector<Arg> args, std::vector<int32_t> results = {}, int segment = 0) {
    exe::Instruction instruction{.op = std::move(name), .args = std::move(args)};
    for (const int32_t result : results) instruction.results.push_back({result});
    executable.segments[segment].instructions.push_back(std::move(instruction));
    return executable.segments[segment].instructions.back();
  }
  exe::Instruction& update(std::string name, std::vector<Arg> args) {
    return op(std::move(name), std::move(args), {}, 1);
  }
  void emit(int32_t from) {
    const int32_t to = output(executable.slots[from].type);
    op("abele::emit", {Arg::id(to), Arg::id(from)}).writes = {to};
  }
};

/// Runs steps of worker 0 on the calling thread.
template <class B>
class RunnerOf {
 public:
  RunnerOf(const Program& program, std::unique_ptr<B> backend) : program_(program), backend_(std::move(backend)) {
    device_ = backend_->makeDevice(0);
  }
  B& backend() { return *backend_; }
  runtime::Device& device() { return *device_; }

  /// Returns result `target` of micro-batch k as [target][k].
  std::vector<std::vector<at::Tensor>> step(const std::vector<at::Tensor>& inputs) {
    std::vector<std::vector<at::Tensor>> outputs;
    for (const int32_t slot : program_.executable.output_slots) {
      const Type& type = program_.executable.slots[slot].type;
      outputs.emplace_back();
      for (int64_t k = 0; k < program_.executable.micro_batches; ++k)
        outputs.back().push_back(at::empty_strided(type.sizes, type.strides, static_cast<at::ScalarType>(type.dtype)));
    }
    stepInto(inputs, outputs);
    return outputs;
  }
  void stepInto(const std::vector<at::Tensor>& inputs, const std::vector<std::vector<at::Tensor>>& outputs) {
    backend_->bindInputs(inputs);
    backend_->bindOutputs(outputs);
    backend_->begin(steps_);
    try {
      for (const exe::Action& action : program_.executable.workers[0].actions)
        device_->run({0, action.segment, action.micro_batch,
                      static_cast<int32_t>(action.micro_batch % program_.executable.accumulation), steps_});
    } catch (...) {
      backend_->finish(false);
      throw;
    }
    backend_->finish(true);
    ++steps_;
  }

 private:
  const Program& program_;
  std::unique_ptr<B> backend_;
  std::unique_ptr<runtime::Device> device_;
  int64_t steps_ = 0;
};

inline ::testing::AssertionResult sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())
    return ::testing::AssertionFailure() << "shapes differ: " << a.sizes() << " and " << b.sizes();
  const at::Tensor ours = a.cpu().contiguous(), theirs = b.cpu().contiguous();
  // Not at::equal: a NaN has its bits, too, and the null device computes any number.
  if (ours.nbytes() == 0 || std::memcmp(ours.const_data_ptr(), theirs.const_data_ptr(), ours.nbytes()) == 0)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "largest difference "
                                       << (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace abele::device::testing
