// A graph that runs inside an operator: the body of a loop or a branch. Used by control_flow.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "capture/annotate.h"

namespace abele::operators {

/// Threads: run is safe.
class Subgraph {
 public:
  /// Parses the text form. The same text gives the same object.
  static std::shared_ptr<const Subgraph> of(const std::string& text);

  Subgraph(const Subgraph&) = delete;
  Subgraph& operator=(const Subgraph&) = delete;
  ~Subgraph();

  /// operands: the graph's arguments, then its constants. Returns new, contiguous tensors.
  std::vector<at::Tensor> run(at::TensorList operands, const std::optional<at::Generator>& generator) const;
  /// The random draws of one run.
  capture::BodyDraws draws() const;

 private:
  explicit Subgraph(const std::string& text);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::operators
