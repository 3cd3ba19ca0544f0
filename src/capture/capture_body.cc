#include "capture/capture_body.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <c10/util/ScopeExit.h>

#include "base/error.h"
#include "capture/capture.h"
#include "capture/recorder.h"

namespace abele::capture {
namespace {

// The body draws from the generator that it is given, one number after the other.
void requireOneStream(const ir::Graph& body, const std::string& source) {
  int64_t next = 0, normals = 0;
  for (const ir::Node& node : body.nodes) {
    if (!node.isRandom()) continue;
    ABELE_REQUIRE(node.random_offset == next && node.normals.before == normals, E0106,
                  {.what = "the body of a loop or branch draws the same random numbers again",
                   .at = source,
                   .remedy = "keep the numbers instead of restoring the state of the generator"});
    next += node.random_draws;
    normals += node.normals.count;
  }
}

/// The value that holds the memory of `value` when the body has run.
ir::ValueId lastContents(const ir::Graph& body, ir::ValueId value) {
  for (const ir::Node& node : body.nodes)
    for (const ir::Write& write : node.writes)
      if (write.before == value) value = write.after;
  return value;
}

}  // namespace

BodyCapture captureBody(const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& body,
                        const std::vector<at::Tensor>& inputs, void* mode_object) {
  Recorder* outer = currentRecorder();
  ABELE_CHECK(outer != nullptr, "a body without a capture around it");
  const std::string source = outer->attribution().source();
  Recording recording;
  // The body's recorder has unlocked what both programs know.
  const auto captured = c10::make_scope_exit([outer] { outer->locks().lockAgain(); });
  {
    const DispatchMode::Paused paused(outer->mode());
    const auto forward = [&](std::vector<at::Tensor> arguments) {
      std::vector<at::Tensor> results = body(std::move(arguments));
      // By value: also what comes from around the body is then something that the body made.
      for (at::Tensor& result : results) result = result.clone();
      return results;
    };
    recording = capture({.forward = forward,
                         .arguments = inputs,
                         .source_location = [&] { return outer->attribution().source(); },
                         .mode_object = mode_object,
                         .strides_groups = outer->stridesGroups(),
                         .is_nested = true});
  }
  requireOneStream(recording.graph, source);
  BodyCapture result{std::move(recording.graph), {}, {}, std::move(recording.results)};
  for (size_t i = 0; i < result.graph.externals.size(); ++i) {
    const Type& type = result.graph.externals[i].type;
    const at::Tensor& tensor = recording.constant_sources[i];
    // The memory that belongs to it; the tensor itself where it has no gaps.
    const bool is_whole = tensor.sizes() == at::IntArrayRef(type.sizes);
    result.reads.push_back(is_whole ? tensor.detach()
                                    : tensor.detach().as_strided(type.sizes, type.strides, tensor.storage_offset()));
  }
  for (const ir::Input& input : result.graph.inputs) {
    const ir::ValueId last = lastContents(result.graph, input.value);
    if (input.kind != ir::InputKind::kConstant || last == input.value) continue;
    const auto target = static_cast<int32_t>(result.graph.outputs.size());
    result.graph.outputs.push_back({last, ir::OutputKind::kResult, target});
    result.written.push_back(input.external);
  }
  return result;
}

}  // namespace abele::capture
