#include "modules/script_module.h"

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include "base/error.h"
#include "base/fork.h"
#include "modules/placed_modules.h"

namespace abele::modules {
namespace {

using torch::jit::Module;
using WeakObject = c10::weak_intrusive_ptr<c10::ivalue::Object>;

/// A submodule, which is registered wherever the script has it.
struct StandIn : torch::nn::Module {
  explicit StandIn(const torch::jit::Module& script) : torch::nn::Module("ScriptModule"), stands_for(script) {}
  const torch::jit::Module stands_for;  // kept alive, so that no other script gets its address
};

using Made = std::unordered_map<const void*, std::shared_ptr<StandIn>>;

std::shared_ptr<StandIn> standIn(const Module& script, Made& made) {
  std::shared_ptr<StandIn>& own = made[script._ivalue().get()];
  if (own) return own;
  own = std::make_shared<StandIn>(script);
  const std::shared_ptr<StandIn> result = own;  // the map may move
  for (const auto& each : script.named_parameters(/*recurse=*/false))
    if (each.value.defined()) result->register_parameter(each.name, each.value, each.value.requires_grad());
  for (const auto& each : script.named_buffers(/*recurse=*/false))
    if (each.value.defined()) result->register_buffer(each.name, each.value);
  for (const auto& each : script.named_children()) result->register_module(each.name, standIn(each.value, made));
  return result;
}

/// A script and its module. The entry is removed after the program has released the script.
struct Known {
  WeakObject script;
  std::weak_ptr<torch::nn::Module> module;
  ModuleDevices::List placement;
};
struct ScriptRegistry {
  ProcessMutex mutex;
  std::map<const void*, Known> all;
};
ScriptRegistry& scriptRegistry() {
  static auto* const one = new ScriptRegistry;  // models of static lifetime outlive it otherwise
  return *one;
}

/// Requires: the lock.
std::shared_ptr<torch::nn::Module> moduleOf(Known& known, const Module& script) {
  if (std::shared_ptr<torch::nn::Module> module = known.module.lock()) return module;
  Made made;
  std::shared_ptr<torch::nn::Module> module = standIn(script, made);
  if (!known.placement.empty()) placeModules(*module, known.placement);
  known.module = module;
  return module;
}

Known& knownOf(const Module& script) {
  std::map<const void*, Known>& all = scriptRegistry().all;
  std::erase_if(all, [](const auto& entry) { return entry.second.script.expired(); });
  return all.try_emplace(script._ivalue().get(), Known{WeakObject(script._ivalue()), {}, {}}).first->second;
}

/// Puts the module's tensors back into a script that has run. Returns: the path of the last that was not there.
std::string restore(const Module& script, const torch::nn::Module& module, const std::string& path) {
  std::string replaced;
  const auto compare = [&](const auto& own) {
    for (const auto& item : own) {
      const c10::IValue now = script.attr(item.key());
      if (now.isTensor() && now.toTensor().is_same(item.value())) continue;
      Module(script).setattr(item.key(), item.value());
      replaced = cat(path, item.key());
    }
  };
  for (const auto& child : module.named_children()) {
    std::string inside = restore(script.attr(child.key()).toModule(), *child.value(), cat(path, child.key(), "."));
    if (!inside.empty()) replaced = std::move(inside);
  }
  compare(module.named_parameters(/*recurse=*/false));
  compare(module.named_buffers(/*recurse=*/false));
  return replaced;
}

// --- arguments and results -------------------------------------------------------------------------------------------
/// The type of what an optional argument holds where it holds something; others are themselves.
c10::TypePtr withoutOptional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? withoutOptional(optional->getElementType()) : type;
}

class Arguments {
 public:
  Arguments(const std::vector<at::Tensor>& tensors, const std::string& form)
      : tensors_(tensors), reader_(form, "the arguments of the script's forward") {}

  std::vector<c10::IValue> read(const c10::FunctionSchema& schema) {
    std::vector<c10::IValue> values;
    const std::vector<c10::Argument>& declared = schema.arguments();
    while (!reader_.atEnd()) {
      const size_t next = values.size() + 1;  // behind self
      ABELE_REQUIRE(next < declared.size(), E0708,
                    {.what = "the call passes more arguments than the script's forward takes",
                     .expected = cat(declared.size() - 1, " or fewer"),
                     .remedy = "call the model with the arguments that forward declares"});
      values.push_back(value(declared[next].type()));
    }
    return values;
  }

 private:
  c10::IValue value(const c10::TypePtr& declared) {
    if (reader_.skip('-')) return withoutOptional(declared) == declared ? c10::IValue(at::Tensor()) : c10::IValue();
    const c10::TypePtr type = withoutOptional(declared);
    switch (type->kind()) {
      case c10::TypeKind::IntType: return reader_.integer();
      case c10::TypeKind::FloatType: return reader_.number();
      case c10::TypeKind::BoolType: return reader_.flag();
      case c10::TypeKind::StringType: return reader_.text();
      case c10::TypeKind::ListType: {
        const c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
        c10::impl::GenericList list(element);
        reader_.require('[', "a list");
        while (!reader_.skip(']')) list.push_back(value(element));
        return list;
      }
      case c10::TypeKind::TupleType: {
        std::vector<c10::IValue> elements;
        reader_.require('[', "a tuple");
        for (const c10::TypePtr& each : type->expectRef<c10::TupleType>().elements()) elements.push_back(value(each));
        reader_.require(']', "no more elements");
        return c10::ivalue::Tuple::create(std::move(elements));
      }
      case c10::TypeKind::DictType: {
        const c10::TypePtr element = type->expectRef<c10::DictType>().getValueType();
        c10::impl::GenericDict dict(type->expectRef<c10::DictType>().getKeyType(), element);
        reader_.require('{', "a map");
        while (!reader_.skip('}')) {
          std::string key = reader_.key();
          dict.insert(std::move(key), value(element));
        }
        return dict;
      }
      default: return tensors_.at(reader_.tensor());
    }
  }

  const std::vector<at::Tensor>& tensors_;
  detail::FormReader reader_;
};

void add(detail::Flat& flat, const c10::IValue& value);

void addEach(detail::Flat& flat, c10::ArrayRef<c10::IValue> values) {
  flat.form += '[';
  for (const c10::IValue& each : values) add(flat, each);
  flat.form += ']';
}

void add(detail::Flat& flat, const c10::IValue& value) {
  if (value.isNone()) {
    flat.form += '-';
  } else if (value.isTensor()) {
    detail::flatten(flat, value.toTensor());
  } else if (value.isTuple()) {
    addEach(flat, value.toTupleRef().elements().asArrayRef());
  } else if (value.isList()) {
    addEach(flat, value.toListRef());
  } else if (value.isGenericDict()) {
    flat.form += '{';
    for (const auto& item : value.toGenericDict()) {
      ABELE_REQUIRE(item.key().isString(), E0708,
                    {.what = "the script returns a dictionary whose keys are not strings",
                     .found = cat("a key of type ", item.key().tagKind())});
      const std::string& key = item.key().toStringRef();
      flat.form += cat(key.size(), ':', key);
      add(flat, item.value());
    }
    flat.form += '}';
  } else if (value.isBool()) {
    detail::addConstant(flat, value.toBool());
  } else if (value.isInt()) {
    detail::addConstant(flat, value.toInt());
  } else if (value.isDouble()) {
    detail::addConstant(flat, value.toDouble());
  } else if (value.isString()) {
    detail::addConstant(flat, std::string_view(value.toStringRef()));
  } else {
    throwUser(ErrorCode::E0708,
              {.what = "the script returns a value that is not a tensor, structure of tensors, number or string",
               .found = cat("a value of type ", value.tagKind()),
               .remedy = "return tensors, or call the script in a forward of your own"});
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> moduleOfScript(const Module& script) {
  const std::lock_guard lock(scriptRegistry().mutex);
  return moduleOf(knownOf(script), script);
}

void placeScript(const Module& script, const ModuleDevices::List& placement) {
  const std::lock_guard lock(scriptRegistry().mutex);
  Known& known = knownOf(script);
  placeModules(*moduleOf(known, script), placement);
  known.placement = placement;
}

void requireOwnTensors(const torch::nn::Module* module) {
  const auto* const own = dynamic_cast<const StandIn*>(module);
  if (!own) return;
  const std::string replaced = restore(own->stands_for, *own, "");
  ABELE_REQUIRE(replaced.empty(), E0108,
                {.what = cat("forward of the script replaced the tensor ", replaced),
                 .remedy = cat("write into it: self.", replaced, ".copy_(value), add_() or a similar operator")});
}

detail::StructuredForward forwardOfScript(const Module& script) {
  ABELE_REQUIRE(script.find_method("forward"), E0708,
                {.what = "the script has no forward",
                 .found = cat("a ", script.type()->str()),
                 .remedy = "pass a callable that calls another method of the script"});
  return [script](const std::vector<at::Tensor>& inputs, const std::string& form) {
    const torch::jit::Method forward = script.get_method("forward");
    const c10::IValue result = forward(Arguments(inputs, form).read(forward.function().getSchema()));
    detail::Flat flat;
    add(flat, result);
    return flat;
  };
}

}  // namespace abele::modules
