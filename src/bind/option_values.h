// For bind/ only: values of options between Python and C++.
#pragma once

#include <string>

#include "bind/bind.h"
#include "options/store.h"

namespace abele::bind {

/// What Python's Options shows. Expert settings are Python's own dict, which may hold anything until a model is
/// compiled; the strategy is the program's object, which it may change until then.
struct __attribute__((visibility("hidden"))) PythonOptions {
  Options::Values values{false};
  pybind11::dict experts;
  pybind11::object strategy = pybind11::none();
};

/// What an object of python/abele/strategies.py says now.
ExecutionStrategy strategyOf(const pybind11::object& strategy);

/// An object that is no value of an option.
struct Unfit {};

/// Which names the maps have. kDevices: Python's are numbers.
enum class Names { kText, kDevices };

/// Throws Unfit.
host::OptionValue toValue(const pybind11::handle& given, Names names);
pybind11::object fromValue(const host::OptionValue& value, Names names);

/// Text may hold bytes that are none, as Python's names of files do. Throws Unfit.
std::string toText(const pybind11::handle& text);
pybind11::object fromText(const std::string& text, const char* errors = "surrogateescape");
/// Text with surrogates that stand for no byte keeps them as they are.
std::string textOrFail(const pybind11::handle& text);
std::string representation(const pybind11::handle& object);

}  // namespace abele::bind
