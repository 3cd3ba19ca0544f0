// Loops and branches. A body is a graph of its own. The node that runs it holds it as text, so the body is printed,
// saved and loaded with the node. Values from outside that a body reads become operands of that node.
#include <algorithm>

#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>

#include "abele/ops.h"
#include "base/error.h"
#include "capture/annotate.h"
#include "capture/capture_body.h"
#include "ir/text.h"
#include "operators/library.h"
#include "operators/subgraph.h"

namespace abele {
namespace {

using ops::Body;
using ops::Tensors;
using LoopSignature = Tensors(at::TensorList, int64_t, int64_t, at::IntArrayRef, std::string,
                              const std::optional<at::Generator>&);
using CondSignature = Tensors(const at::Tensor&, at::TensorList, int64_t, at::IntArrayRef, at::IntArrayRef, std::string,
                              std::string, const std::optional<at::Generator>&);

int& loopDepth() {
  thread_local int depth = 0;
  return depth;
}

void requireInference(const char* what) {
  ABELE_REQUIRE(!capture::isTraining(), E0710,
                {.what = cat(what, " in a training model"),
                 .expected = "an inference model",
                 .remedy = inLanguage("unroll it in C++, or use torch::where")});
}

struct Captured {
  std::string text;
  Tensors operands;              // inputs, then the values from outside that the body reads
  std::vector<int64_t> written;  // positions of the operands that it writes into
  Tensors results;
};

void requireBody(const Body& body, const char* of) {
  ABELE_REQUIRE(body, E0708, {.what = cat("the function of ", of, " is empty"), .remedy = "pass a function"});
}

Captured captured(const Body& body, const Tensors& inputs, void* mode_object) {
  capture::BodyCapture found = capture::captureBody(body, inputs, mode_object);
  for (ir::Node& node : found.graph.nodes) {
    ABELE_REQUIRE(node.op != "abele_op::all_to_all", E0711,
                  {.what = "an exchange of values between replicas in the body of a loop or condition",
                   .at = node.source,
                   .remedy = "exchange them before or after it"});
    // The node that runs the body already has a source and a scope. They are left out of the body, so that the same
    // body gives the same text wherever it is.
    node.source.clear();
    node.scope.clear();
    node.time_ns = 0;
  }
  Captured result{ir::print(found.graph), inputs, {}, std::move(found.results)};
  result.operands.insert(result.operands.end(), found.reads.begin(), found.reads.end());
  for (const int32_t external : found.written) result.written.push_back(static_cast<int64_t>(inputs.size()) + external);
  return result;
}

/// Writes to tensors outside a body happen after the body. Removes the new contents from the results and copies them
/// into those tensors.
Tensors resultsAfterWrites(Tensors results, const Tensors& written) {
  const size_t num_results = results.size() - written.size();
  for (size_t i = 0; i < written.size(); ++i) at::Tensor(written[i]).copy_(results[num_results + i]);
  results.resize(num_results);
  return results;
}

const c10::StorageImpl* storageOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

void requireCarried(const Tensors& before, const Tensors& after) {
  ABELE_REQUIRE(before.size() == after.size(), E0708,
                {.what = cat("the body of a loop returns ", after.size(), " tensors"),
                 .expected = cat(before.size(), ", the number that it takes")});
  for (size_t i = 0; i < before.size(); ++i)
    ABELE_REQUIRE(before[i].sizes() == after[i].sizes() && before[i].scalar_type() == after[i].scalar_type(), E0708,
                  {.what = cat("the body of a loop changes the shape or type of tensor ", i),
                   .found = cat(c10::toString(after[i].scalar_type()), " of rank ", after[i].dim()),
                   .expected = "the shape and type that it takes",
                   .remedy = "reshape or convert the result"});
}

void requireAlike(const Tensors& then_results, const Tensors& else_results) {
  ABELE_REQUIRE(then_results.size() == else_results.size(), E0708,
                {.what = "the branches of a condition return different numbers of tensors",
                 .found = cat(then_results.size(), " and ", else_results.size())});
  for (size_t i = 0; i < then_results.size(); ++i) {
    const at::Tensor &a = then_results[i], &b = else_results[i];
    ABELE_REQUIRE(b.dim() >= 1, E0708,
                  {.what = cat("result ", i, " of the else branch is a scalar"),
                   .expected = "a tensor of rank 1 or more",
                   .remedy = "reshape it to [1]"});
    ABELE_REQUIRE(a.numel() == b.numel() && a.scalar_type() == b.scalar_type(), E0708,
                  {.what = cat("the branches of a condition differ in result ", i),
                   .found = cat(a.numel(), " elements of ", c10::toString(a.scalar_type()), " and ", b.numel(), " of ",
                                c10::toString(b.scalar_type())),
                   .expected = "the same number of elements and the same type"});
  }
}

capture::BodyDraws repeated(capture::BodyDraws draws, int64_t count) {
  if (count == 0) return {};
  draws.normals.spare += (count - 1) * draws.draws;
  draws.normals.count *= count;
  draws.draws *= count;
  return draws;
}

capture::BodyDraws ofEither(const capture::BodyDraws& a, const capture::BodyDraws& b) {
  const bool are_alike = a.draws == b.draws && a.normals == b.normals;
  return {.draws = std::max(a.draws, b.draws),
          .normals = {.count = std::max(a.normals.count, b.normals.count),
                      .spare = std::max(a.normals.spare, b.normals.spare)},
          .vary = a.vary || b.vary || !are_alike};
}

/// For condKernel: three numbers for each outside tensor that the branches write into. Outside operands are whole
/// values of the program, so two of them either are the same memory or share none.
std::vector<int64_t> writtenByEither(const Captured& then_branch, const Captured& else_branch, Tensors* written) {
  std::vector<int64_t> rows;
  const auto num_results = static_cast<int64_t>(then_branch.results.size());
  const auto num_then = static_cast<int64_t>(then_branch.operands.size());
  const auto add = [&](const Captured& branch, int64_t first_operand, size_t column) {
    for (size_t i = 0; i < branch.written.size(); ++i) {
      const at::Tensor& memory = branch.operands[branch.written[i]];
      const auto same = std::find_if(written->begin(), written->end(), [&](const at::Tensor& other) {
        return storageOf(other) == storageOf(memory) && other.storage_offset() == memory.storage_offset();
      });
      const auto row = 3 * static_cast<size_t>(same - written->begin());
      if (same == written->end()) {
        rows.insert(rows.end(), {-1, -1, first_operand + branch.written[i]});
        written->push_back(memory);
      }
      rows[row + column] = num_results + static_cast<int64_t>(i);
    }
  };
  add(then_branch, 0, 0);
  add(else_branch, num_then, 1);
  return rows;
}

}  // namespace

namespace operators {

// Returns the new contents of the carried operands, then of the operands that the body writes into.
Tensors loopKernel(at::TensorList inputs, int64_t count, int64_t num_carried, at::IntArrayRef written, std::string body,
                   const std::optional<at::Generator>& generator) {
  const auto subgraph = Subgraph::of(body);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < num_carried; ++i) places.push_back(i);
  places.insert(places.end(), written.begin(), written.end());
  Tensors values = inputs.vec();
  for (int64_t i = 0; i < count; ++i) {
    Tensors next = subgraph->run(values, generator);
    for (size_t k = 0; k < places.size(); ++k) values[places[k]] = std::move(next[k]);
  }
  if (capture::isCapturing()) capture::tellDraws(repeated(subgraph->draws(), count));
  Tensors results;
  for (const int64_t place : places)
    results.push_back(count > 0 ? values[place] : values[place].clone(at::MemoryFormat::Contiguous));
  return results;
}

// written: three numbers for each outside tensor that a branch writes into. They are its position among the results of
// the first branch, its position among the results of the second (-1 if that branch does not write it), and its
// position among the operands.
Tensors condKernel(const at::Tensor& condition, at::TensorList inputs, int64_t num_then, at::IntArrayRef shapes,
                   at::IntArrayRef written, std::string then_body, std::string else_body,
                   const std::optional<at::Generator>& generator) {
  const auto then_branch = Subgraph::of(then_body), else_branch = Subgraph::of(else_body);
  const bool holds = condition.const_data_ptr<bool>()[0];
  const auto& taken = holds ? then_branch : else_branch;
  Tensors results = taken->run(holds ? inputs.slice(0, num_then) : inputs.slice(num_then), generator);
  if (capture::isCapturing()) capture::tellDraws(ofEither(then_branch->draws(), else_branch->draws()));
  size_t num_results = 0;
  for (; !shapes.empty(); ++num_results) {
    const int64_t rank = shapes[0];
    if (holds) results[num_results] = results[num_results].view(shapes.slice(1, rank));
    shapes = shapes.slice(1 + rank);
  }
  Tensors all(results.begin(), results.begin() + static_cast<int64_t>(num_results));
  for (; !written.empty(); written = written.slice(3)) {
    const int64_t result = written[holds ? 0 : 1];
    all.push_back(result >= 0 ? results[result] : inputs[written[2]].clone(at::MemoryFormat::Contiguous));
  }
  return all;
}

}  // namespace operators

namespace ops {

Tensors forLoop(int64_t count, const Body& body, const Tensors& inputs, void* mode_object) {
  requireBody(body, "a loop");
  ABELE_REQUIRE(count >= 0, E0708, {.what = cat("a loop of ", count, " iterations")});
  if (!capture::isCapturing()) {
    Tensors values = copies(inputs);
    for (int64_t i = 0; i < count; ++i) {
      Tensors next = body(values);
      requireCarried(values, next);
      values = std::move(next);
    }
    return values;
  }
  requireInference("for_loop");
  ABELE_REQUIRE(loopDepth() == 0, E0710,
                {.what = "a loop inside a loop", .remedy = "unroll one of them with a loop of the language"});
  struct Depth {
    Depth() { ++loopDepth(); }
    ~Depth() { --loopDepth(); }
  };
  Captured loop;
  {
    const Depth depth;
    loop = captured(body, inputs, mode_object);
  }
  requireCarried(inputs, loop.results);
  Tensors results =
      operators::operatorOf<LoopSignature>("abele_op::for_loop")
          .call(loop.operands, count, static_cast<int64_t>(inputs.size()), loop.written, loop.text, std::nullopt);
  Tensors written;
  for (const int64_t operand : loop.written) written.push_back(loop.operands[operand]);
  return resultsAfterWrites(std::move(results), written);
}

Tensors cond(const at::Tensor& condition, const Body& then_body, const Tensors& then_inputs, const Body& else_body,
             const Tensors& else_inputs, void* mode_object) {
  requireBody(then_body, "the first branch of a condition");
  requireBody(else_body, "the second branch of a condition");
  ABELE_REQUIRE(condition.numel() == 1, E0708,
                {.what = cat("a condition of ", condition.numel(), " elements"), .expected = "one"});
  if (!capture::isCapturing())
    return condition.item<bool>() ? then_body(copies(then_inputs)) : else_body(copies(else_inputs));
  requireInference("cond");
  Captured then_branch = captured(then_body, then_inputs, mode_object);
  Captured else_branch = captured(else_body, else_inputs, mode_object);
  requireAlike(then_branch.results, else_branch.results);
  std::vector<int64_t> shapes;  // rank and sizes of each result
  for (const at::Tensor& result : else_branch.results) {
    shapes.push_back(result.dim());
    shapes.insert(shapes.end(), result.sizes().begin(), result.sizes().end());
  }
  const auto num_then = static_cast<int64_t>(then_branch.operands.size());
  Tensors written;
  const std::vector<int64_t> rows = writtenByEither(then_branch, else_branch, &written);
  Tensors operands = std::move(then_branch.operands);
  operands.insert(operands.end(), else_branch.operands.begin(), else_branch.operands.end());
  return resultsAfterWrites(operators::operatorOf<CondSignature>("abele_op::cond")
                                .call(condition.to(at::kBool), operands, num_then, shapes, rows, then_branch.text,
                                      else_branch.text, std::nullopt),
                            written);
}

}  // namespace ops
}  // namespace abele
