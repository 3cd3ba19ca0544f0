// For bind/ only: values of options between Python and C++.
#pragma once

#include <string>

#include "bind/bind.h"
#include "options/store.h"

namespace abele::bind {

/// The values that Python's Options shows. Expert settings are Python's own dict, which may hold anything until a model
/// is compiled. The strategy is the user's object, which the user may change until a model is compiled.
struct __attribute__((visibility("hidden"))) PythonOptions {
  Options::Values values{false};
  pybind11::dict experts;
  pybind11::object strategy = pybind11::none();
};

/// The present value of an object of python/abele/strategies.py.
ExecutionStrategy strategyOf(const pybind11::object& strategy);

/// Thrown for an object that cannot be the value of an option.
struct Unfit {};

/// The keys of maps: text, or with kDevices Python's device numbers.
enum class Names { kText, kDevices };

/// Throws Unfit.
options::OptionValue toValue(const pybind11::handle& given, Names names);
pybind11::object fromValue(const options::OptionValue& value, Names names);

/// The text may have invalid bytes, like Python's file names. Throws Unfit.
std::string toText(const pybind11::handle& text);
pybind11::object fromText(const std::string& text, const char* errors = "surrogateescape");
/// Keeps Python's surrogates that do not stand for a byte.
std::string textOrFail(const pybind11::handle& text);
std::string representation(const pybind11::handle& object);

}  // namespace abele::bind
