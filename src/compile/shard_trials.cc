#include "compile/shard_trials.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "compile/compiler.h"
#include "compile/measured_placement.h"
#include "ir/text.h"
#include "kernels/intra_op_threads.h"
#include "kernels/known_trials.h"
#include "kernels/operator_lookup.h"
#include "operators/graph_run.h"

namespace abele::compile {
namespace {

constexpr uint64_t kSeed = 20261129;
// Two kernels that round in different orders never agree on all of many elements. With fewer than this, a trial has two
// rounds at least.
constexpr int64_t kEnoughElements = int64_t{1} << 20;
// Integers may be indices, so they are below the smallest size that is more than 1, and below this number.
constexpr int64_t kMostIndices = 64;

bool allFail() {
  const std::string text = environmentText("ABELE_SHARD_TRIALS");
  ABELE_REQUIRE(text.empty() || text == "fail", E0702,
                {.what = cat("environment variable ABELE_SHARD_TRIALS is '", text, "'"),
                 .expected = "fail",
                 .remedy = "unset it, so that trials run"});
  return !text.empty();
}

int64_t numIndices(const ir::Graph& graph) {
  int64_t least = kMostIndices;
  for (const ir::Input& input : graph.inputs)
    for (const int64_t size : graph.values[input.value].type.sizes)
      if (size > 1) least = std::min(least, size);
  return least;
}

class Trial {
 public:
  Trial(const ir::Graph& whole, const ir::Graph& parts, c10::Device device)
      : whole_(whole), parts_(parts), device_(device), indices_(numIndices(whole)) {
    for (const ir::Graph* graph : {&whole, &parts})
      for (const ir::Input& input : graph->inputs)
        ABELE_CHECK(input.kind == ir::InputKind::kArgument, "input ", input.value, " of a trial is no argument");
    ABELE_CHECK(whole.inputs.size() == parts.inputs.size() && whole.outputs.size() == parts.outputs.size(),
                "parts with other inputs or results than the whole");
  }

  bool agrees() {
    int64_t elements = 0, numbers = 0;
    for (const ir::Output& output : whole_.outputs) elements += whole_.values[output.value].type.numel();
    for (const ir::Input& input : whole_.inputs) numbers += whole_.values[input.value].type.extent();
    const int64_t rounds = kernels::trialRounds(elements, numbers, elements < kEnoughElements ? 2 : 1);
    for (int64_t round = 0; round < rounds; ++round) {
      makeInputs();
      const std::optional<std::vector<at::Tensor>> expected = resultsOf(whole_);
      const std::optional<std::vector<at::Tensor>> found = expected ? resultsOf(parts_) : std::nullopt;
      if (!found || !std::ranges::equal(*expected, *found, haveSameBits)) return false;
    }
    return true;
  }

 private:
  static bool haveSameBits(const at::Tensor& one, const at::Tensor& other) {
    if (one.scalar_type() != other.scalar_type() || one.sizes() != other.sizes()) return false;
    const at::Tensor a = one.cpu().contiguous(), b = other.cpu().contiguous();
    return a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  }

  void makeInputs() {
    inputs_.clear();
    for (const ir::Input& input : whole_.inputs) {
      const Type& type = whole_.values[input.value].type;
      const at::Tensor memory = at::empty({type.extent()}, static_cast<at::ScalarType>(type.dtype));
      if (memory.is_floating_point() || memory.is_complex())
        memory.normal_(0, 1, generator_);
      else
        memory.random_(0, memory.scalar_type() == at::kBool ? 2 : indices_, generator_);
      inputs_.push_back(memory.to(device_).as_strided(type.sizes, type.strides));
    }
  }

  /// Nothing if a result is not of the graph's type.
  std::optional<std::vector<at::Tensor>> resultsOf(const ir::Graph& graph) const {
    const std::optional<at::Generator> draws = newGenerator(device_, kSeed);
    operators::GraphRun run(graph, draws, device_);
    for (size_t i = 0; i < inputs_.size(); ++i) run.keep(graph.inputs[i].value, inputs_[i]);
    for (const ir::Node& node : graph.nodes)
      if (!node.is_view) run.call(node, kernels::findOperator(node.op));
    if (!run.hasTypesOfGraph()) return std::nullopt;
    std::vector<at::Tensor> results;
    for (const ir::Output& output : graph.outputs) results.push_back(run.at(output.value));
    return results;
  }

  const ir::Graph& whole_;
  const ir::Graph& parts_;
  const c10::Device device_;
  int64_t indices_;
  at::Generator generator_ = at::detail::createCPUGenerator(kSeed);
  std::vector<at::Tensor> inputs_;
};

/// The operator and the type of its first operand.
std::string nameOf(const ir::Graph& whole) {
  const auto node = std::ranges::find_if(whole.nodes, [](const ir::Node& each) { return !each.is_view; });
  const std::string op = node == whole.nodes.end() ? whole.name : node->op;
  return whole.inputs.empty() ? op : cat(op, " of ", whole.values[whole.inputs[0].value].type.str());
}

/// Like a device's worker, the thread has no mode and no setting of the caller's.
bool tryApart(const ir::Graph& whole, const ir::Graph& parts, int threads, c10::Device device) {
  return std::async(std::launch::async,
                    [&] {
                      const c10::InferenceMode inference;
                      const c10::DeviceGuard on(device);
                      kernels::setIntraOpThreads(threads);
                      try {
                        return Trial(whole, parts, device).agrees();
                      } catch (const InternalError&) {
                        throw;
                      } catch (const std::exception& error) {
                        log::debug("shard: a trial ended in ", error.what());
                        return false;
                      }
                    })
      .get();
}

}  // namespace

bool givesSameBits(const ir::Graph& whole, const ir::Graph& parts, int threads, c10::Device device) {
  if (allFail()) return false;
  static auto& known = *new kernels::KnownTrials<std::string, bool>;
  return known.of(cat(device.str(), " ", threads, "\n", ir::print(whole), ir::print(parts)), [&] {
    const bool agrees = tryApart(whole, parts, threads, device);
    log::debug("shard: parts of ", nameOf(whole),
               agrees ? " have the bits of the whole" : " have other bits than the whole");
    return agrees;
  });
}

std::string machineOfTrials(const ProgramOptions& options) {
  const c10::Device device = captureDevice(options);
  return cat(machineText(options), ", kernels ", at::get_cpu_capability(),
             device.is_cpu() ? "" : cat(", ", c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
             allFail() ? ", ABELE_SHARD_TRIALS=fail" : "");
}

}  // namespace abele::compile
