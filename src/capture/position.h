// Where the program is: the operator that is being recorded, and what messages and nodes say of it. Used by the parts
// of recorder.h.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "capture/attribution.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
struct Position {
  Position(Attribution* a, c10::Device d) : attribution(*a), device(d) {}

  /// To where the program is now. producer, module: as of Attribution::here.
  void moveHere(const ir::Node* producer = nullptr, const std::string& module = {}) {
    where = attribution.here(producer, module);
  }
  /// "aten::mul.Tensor, train.py:88".
  std::string str() const;
  /// The user's line, or the operator where the line is not known.
  const std::string& line() const { return where.source.empty() ? op_name : where.source; }
  /// E0101: the program reads a value that may be another one in the next micro-batch.
  [[noreturn]] void refuseRead() const;

  Attribution& attribution;
  c10::Device device;   // where the capture computes
  std::string op_name;  // with its overload; also "result", or what reads memory past all operators
  Where where;
};

}  // namespace abele::capture
