// For tests: runs an ir::Graph naively, one boxed call a node, on new inputs. The oracle that a recording is complete.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include "ir/graph.h"

namespace abele::test {

struct ReplayResult {
  std::vector<at::Tensor> results;  // by kResult order
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;  // by parameter name
  std::map<std::string, at::Tensor> updates;    // new contents of externals, by name
};

/// Every base value gets memory of its own; views are laid over it; a write copies the base and then updates the copy.
class Replayer {
 public:
  /// externals: contents by external index (constants from Recording::constants, parameters and buffers by the caller).
  Replayer(const ir::Graph& graph, std::vector<at::Tensor> externals, at::Generator generator)
      : graph_(graph), externals_(std::move(externals)), start_(std::move(generator)) {}

  ReplayResult run(const std::vector<at::Tensor>& arguments) {
    const c10::AutoGradMode no_grad(false);
    memory_.assign(graph_.values.size(), at::Tensor());
    generator_ = start_.clone();
    position_ = 0;
    for (const ir::Input& input : graph_.inputs) {
      const Type& type = graph_.values[input.value].type;
      const at::Tensor& source =
          input.kind == ir::InputKind::kArgument ? arguments.at(input.external) : externals_.at(input.external);
      at::Tensor memory = allocate(type);
      if (at::has_internal_overlap(memory) == at::MemOverlap::Yes) {  // an expanded argument
        memory_[input.value] =
            source.detach().as_strided({type.extent()}, {1}).clone().as_strided(type.sizes, type.strides);
        continue;
      }
      memory.copy_(source.detach().sizes() == type.sizes
                       ? source.detach()
                       : source.detach().as_strided(type.sizes, type.strides, source.storage_offset()));
      memory_[input.value] = memory;
    }
    for (const ir::Node& node : graph_.nodes) {
      // A few kernels choose what they save by it, as they do in eager.
      const c10::AutoGradMode grad_mode(graph_.training && node.direction == ir::Direction::kForward);
      if (!node.is_view) runNode(node);
    }
    return collect();
  }

 private:
  static at::Tensor allocate(const Type& type) {
    return at::empty_strided(type.sizes, type.strides, static_cast<at::ScalarType>(type.dtype));
  }
  static at::Tensor view(const at::Tensor& memory, const Type& type, int64_t offset) {
    at::Tensor tensor = at::empty({0}, static_cast<at::ScalarType>(type.dtype));
    tensor.set_(memory.storage(), offset, type.sizes, type.strides);
    return tensor;
  }
  at::Tensor tensorOf(ir::ValueId id) const {
    if (id < 0) return {};
    const ir::Value& value = graph_.values[id];
    const at::Tensor& memory = memory_.at(value.base);
    if (!memory.defined()) throw std::logic_error("value %" + std::to_string(id) + " is read before it is made");
    return view(memory, value.type, value.offset);
  }

  c10::IValue number(const Arg& arg) const {
    switch (arg.number_kind) {
      case Arg::Kind::kBool: return wrapped(at::empty({}, at::kBool).fill_(arg.i != 0));
      case Arg::Kind::kInt: return wrapped(at::empty({}, at::kLong).fill_(arg.i));
      case Arg::Kind::kDouble: return wrapped(at::empty({}, at::kDouble).fill_(arg.d));
      default: return wrapped(at::empty({}, at::kComplexDouble).fill_(c10::complex<double>(arg.d, arg.d2)));
    }
  }
  static c10::IValue wrapped(at::Tensor tensor) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  c10::IValue box(const Arg& arg, int32_t index, const ir::Node& node) {
    auto operand = [&](int64_t id, int32_t element) {
      for (const ir::Write& w : node.writes)
        if (w.arg == index && w.element == element) return view(memory_.at(w.after), w.view, w.offset);
      return tensorOf(static_cast<ir::ValueId>(id));
    };
    switch (arg.kind) {
      case Arg::Kind::kNone: return {};
      case Arg::Kind::kBool: return arg.i != 0;
      case Arg::Kind::kInt: return arg.i;
      case Arg::Kind::kDouble: return arg.d;
      case Arg::Kind::kComplex: return c10::complex<double>(arg.d, arg.d2);
      case Arg::Kind::kString: return arg.s;
      case Arg::Kind::kIntList: return arg.ints;
      case Arg::Kind::kDoubleList: return arg.doubles;
      case Arg::Kind::kBoolList: {
        c10::List<bool> list;
        for (int64_t i : arg.ints) list.push_back(i != 0);
        return list;
      }
      case Arg::Kind::kStringList: return arg.strings;
      case Arg::Kind::kDevice: return c10::Device(arg.s);
      case Arg::Kind::kGenerator: return generator_;
      case Arg::Kind::kId: return operand(arg.i, ir::kNone);
      case Arg::Kind::kIdList: {
        c10::List<at::Tensor> list;
        for (size_t i = 0; i < arg.ints.size(); ++i) list.push_back(operand(arg.ints[i], static_cast<int32_t>(i)));
        return list;
      }
      case Arg::Kind::kOptionalIdList: {
        c10::List<std::optional<at::Tensor>> list;
        for (size_t i = 0; i < arg.ints.size(); ++i)
          list.push_back(arg.ints[i] < 0 ? std::optional<at::Tensor>() : operand(arg.ints[i], static_cast<int32_t>(i)));
        return list;
      }
      case Arg::Kind::kNumber: return number(arg);
    }
    throw std::logic_error("unknown kind of argument");
  }

  void runNode(const ir::Node& node) {
    const size_t dot = node.op.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        node.op.substr(0, dot).c_str(), dot == std::string::npos ? "" : node.op.substr(dot + 1).c_str());
    for (const ir::Write& w : node.writes) {
      const Type& type = graph_.values[w.before].type;
      memory_[w.after] = allocate(type);
      memory_[w.after].copy_(view(memory_.at(w.before), type, 0));
    }
    if (node.random_draws > 0) moveTo(node.random_offset);
    torch::jit::Stack stack;
    for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(box(node.args[i], static_cast<int32_t>(i), node));
    op.callBoxed(&stack);
    if (node.random_draws > 0) position_ += node.random_draws;
    for (size_t i = 0; i < node.results.size(); ++i) {
      const auto& ids = node.results[i];
      if (ids.empty() || stack.at(i).isNone()) continue;
      if (stack[i].isTensor()) {
        keep(ids.at(0), stack[i].toTensor(), node);
        continue;
      }
      const auto list = stack[i].toTensorVector();
      for (size_t k = 0; k < ids.size(); ++k) keep(ids[k], list.at(k), node);
    }
  }

  void keep(ir::ValueId id, const at::Tensor& tensor, const ir::Node& node) {
    if (id < 0) return;
    const ir::Value& value = graph_.values[id];
    if (!tensor.defined() || tensor.sizes() != value.type.sizes || tensor.strides() != value.type.strides ||
        static_cast<int>(tensor.scalar_type()) != static_cast<int>(value.type.dtype))
      throw std::logic_error(node.op + " made another type than recorded: " + value.type.str() + " became " +
                             (tensor.defined() ? tensor.toString() + std::to_string(tensor.numel()) : "none"));
    if (memory_[value.base].defined()) return;
    memory_[id] = tensor;
    if (tensor.storage_offset() != 0)
      memory_[id] = view(tensor.as_strided({value.type.extent()}, {1}).clone(), value.type, 0);
  }

  void moveTo(int64_t offset) {
    if (offset == position_) return;
    generator_ = start_.clone();
    at::mt19937 engine = generator_.get<at::CPUGeneratorImpl>()->engine();
    for (int64_t i = 0; i < offset; ++i) engine();
    generator_.get<at::CPUGeneratorImpl>()->set_engine(engine);
    position_ = offset;
  }

  ReplayResult collect() const {
    ReplayResult all;
    for (const ir::Output& output : graph_.outputs) {
      const at::Tensor value = tensorOf(output.value).clone();
      switch (output.kind) {
        case ir::OutputKind::kResult: all.results.push_back(value); break;
        case ir::OutputKind::kLoss: all.loss = value; break;
        case ir::OutputKind::kGradient: all.gradients[graph_.externals[output.target].name] = value; break;
        case ir::OutputKind::kUpdate: all.updates[graph_.externals[output.target].name] = value; break;
      }
    }
    return all;
  }

  const ir::Graph& graph_;
  std::vector<at::Tensor> externals_;
  at::Generator start_;
  at::Generator generator_;
  int64_t position_ = 0;
  std::vector<at::Tensor> memory_;  // by base value
};

}  // namespace abele::test
