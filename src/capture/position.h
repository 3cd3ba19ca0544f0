// The operator that is being recorded and its place in the program, for messages and nodes. Used by the parts of
// recorder.h.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "capture/attribution.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
struct Position {
  Position(Attribution* a, c10::Device d) : attribution(*a), device(d) {}

  /// Moves to the program's present place. producer, module: as in Attribution::here.
  void moveHere(const ir::Node* producer = nullptr, const std::string& module = {}) {
    where = attribution.here(op_name, producer, module);
  }
  /// "aten::mul.Tensor, train.py:88".
  std::string str() const;
  /// The user's line, or the operator if the line is not known.
  const std::string& line() const { return where.source.empty() ? op_name : where.source; }
  /// Throws E0101: the program reads a value that may differ in the next micro-batch.
  [[noreturn]] void refuseRead() const;

  Attribution& attribution;
  c10::Device device;   // the device of the capture
  std::string op_name;  // with its overload; also "result", or the function that reads memory without an operator
  Where where;
};

}  // namespace abele::capture
