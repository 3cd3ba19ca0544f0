// For users of the library: proves that a compiled model computes the bits of eager PyTorch. Read model.h first.
//
//   auto proof = abele::verify(model, std::tuple(x1, y1), std::tuple(x2, y2));
//   if (!proof) std::cout << proof.text;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "abele/export.h"
#include "abele/forward.h"

namespace abele {

class CompiledModel;

/// The first difference between eager and compiled, in the order of eager's computation.
struct Difference {
  /// "value": the devices computed another value than eager. "constant": a captured constant differs for this
  /// micro-batch. "program": forward ran other operators for this micro-batch. "capture": eager computes other values
  /// while it is captured. "gradient", "weight": a parameter's gradient sum, or a parameter or buffer after the step,
  /// differs.
  std::string kind;
  std::string op;         // for gradients and weights the parameter or buffer
  std::string line;       // line of the program; empty: unknown
  std::string scope;      // names of modules and of name scopes, with "/" between them
  std::string direction;  // "forward", "backward", "weight-gradient", "update"
  int stage = -1;         // -1: no stage runs it
  int64_t batch = 0, micro_batch = 0;
  std::vector<int64_t> element;  // index of the first element that differs
  int64_t elements = 0, of = 0;  // number of elements that differ, and of all elements
  std::string type;              // "f32[4,8]"
  std::string found, expected;   // the compiled and the eager value; empty if a second run did not reproduce them
  std::string reason;
};

/// The result of verify().
struct Verification {
  int64_t batches = 0, micro_batches = 0;  // number that ran
  int64_t values = 0;                      // number of compared values
  std::optional<Difference> difference;
  std::vector<std::string> notes;  // comparisons that were left out, and why
  std::string text;                // the whole result, for people
  bool equal() const { return !difference; }
  explicit operator bool() const { return equal(); }
};

namespace detail {
template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

/// The arguments of one call.
template <class Batch>
Flat argumentsOf(const Batch& batch) {
  if constexpr (IsTuple<Batch>::value)
    return std::apply([](const auto&... each) { return flattened(each...); }, batch);
  else
    return flattened(batch);
}

ABELE_API Verification verify(CompiledModel& model, const std::vector<Flat>& batches);
}  // namespace detail

/// Runs the model's forward eagerly and its compiled program on the same batches, and compares value by value, bit for
/// bit: the results of every operator in forward and backward, the sums of gradients, the results of the call, and
/// weights and buffers after each step. Both start from the module's present weights, from an optimizer without state
/// and from the same random numbers. Forward is also captured again for every micro-batch. This finds constants of the
/// program that have changed, however the program reads them. Afterwards the module, gradients and random numbers are
/// as before. batches: each is the arguments of one call: a std::tuple of them, or the single argument. Pass two or
/// more, unless a call has several micro-batches. Updates are those of torch.optim in Python, or of LibTorch if the
/// optimizer sets `libtorch`.
/// Throws: the errors of compiling and running; E0702 for options without a counterpart in eager (replicas, stochastic
/// rounding, automatic loss scaling); E0705 for a loaded model, which has no forward; E0708 without batches.
template <class... Batch>
Verification verify(CompiledModel& model, const Batch&... batches) {
  return detail::verify(model, std::vector<detail::Flat>{detail::argumentsOf(batches)...});
}

}  // namespace abele
