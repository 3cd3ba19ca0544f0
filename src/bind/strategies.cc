// Stages and strategies: the C++ values and rules for the objects of python/abele/strategies.py. Those objects hold the
// stages that a program shares and changes.
#include "bind/bind.h"
#include "bind/option_values.h"
#include "options/objects.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using options::OptionObject;
using options::OptionValue;

std::vector<OptionValue> argumentsOf(const std::string& call, const py::args& given) {
  std::vector<OptionValue> arguments;
  for (const py::handle each : given) try {
      arguments.push_back(toValue(each, Names::kText));
    } catch (const Unfit&) {
      throw options::OptionError(ErrorCode::E0702, {.what = cat(call, " does not take ", representation(each))},
                                 options::Refused::kCondition);
    }
  return arguments;
}

template <class T>
void call(T& self, const std::string& method, const py::args& given) {
  OptionObject object = self;
  options::callMethod(object, method, argumentsOf(method, given), {});
  self = std::get<T>(object);
}

py::object toPython(const OptionObject& object) {
  if (const auto* stage = std::get_if<Stage>(&object)) return py::cast(*stage);
  const auto* strategy = std::get_if<ExecutionStrategy>(&object);
  ABELE_CHECK(strategy != nullptr, "an object of another kind");
  return py::cast(*strategy);
}

py::object ofText(const py::str& text) {
  return toPython(**options::parseObject(toText(text)).as<std::shared_ptr<const OptionObject>>());
}

py::tuple blocksOf(const Stage& stage) {
  py::tuple blocks(stage.blocks.size());
  for (size_t i = 0; i < stage.blocks.size(); ++i) blocks[i] = fromText(stage.blocks[i]);
  return blocks;
}

}  // namespace

ExecutionStrategy strategyOf(const py::object& strategy) { return strategy.attr("_value")().cast<ExecutionStrategy>(); }

void registerStrategies(py::module_& module) {
  py::class_<Stage>(module, "Stage")
      .def_property_readonly("blocks", blocksOf)
      .def_property_readonly(
          "device", [](const Stage& self) { return self.device_index < 0 ? py::none() : py::cast(self.device_index); })
      .def_property_readonly("text", [](const Stage& self) { return fromText(options::textOf(self)); })
      .def("call", call<Stage>);
  py::class_<ExecutionStrategy>(module, "Strategy")
      .def_property_readonly("liveness",
                             [](const ExecutionStrategy& self) { return static_cast<int>(self.tensors_liveness); })
      .def_property_readonly("backend_options",
                             [](const ExecutionStrategy& self) {
                               return fromValue(OptionValue(options::backendOptions(self)), Names::kText);
                             })
      .def_property_readonly("text", [](const ExecutionStrategy& self) { return fromText(options::textOf(self)); })
      .def("call", call<ExecutionStrategy>)
      .def(
          "withStages",
          [](ExecutionStrategy self, std::vector<Stage> stages) {
            self.stages = std::move(stages);
            return self;
          },
          py::arg("stages"));
  module.def("makeOptionObject", [](const std::string& type, const py::args& given) {
    return toPython(options::makeObject(type, argumentsOf(type, given)));
  });
  module.def("optionObjectOf", ofText, py::arg("text"), "What .text says of a stage or a strategy.");
}

}  // namespace abele::bind
