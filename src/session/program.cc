// The compiled program as data: made from a recording, saved from a session, loaded into a session.
#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "compile/lowering.h"
#include "compile/tensors.h"
#include "ir/text.h"
#include "processes/processes.h"
#include "session/impl.h"

namespace abele::session {

compile::CompiledProgram Session::program() const {
  at::NoGradGuard no_grad;
  const Compiled& compiled = impl_->require("program()");
  compile::CompiledProgram program = compiled;
  program.constants.assign(compiled.executable.externals.size(), at::Tensor());
  for (const int32_t i : exe::externalsOf(compiled.executable, exe::ExternalKind::kConstant))
    program.constants[i] = compiled.backend->value(i);
  return program;
}

namespace {

bool isGrouped(const compile::CompiledProgram& program, const std::string& parameter) {
  return std::ranges::any_of(program.groupings, [&](const compile::ReplicaGrouping& grouping) {
    return grouping.parameter == parameter && grouping.type != compile::CommGroup::kAll;
  });
}

void checkFits(const compile::CompiledProgram& program, const compile::ProgramOptions& options,
               const std::vector<capture::ModelTensor>& model) {
  const exe::Executable& executable = program.executable;
  const auto require = [](bool holds, std::string what, std::string found, std::string expected) {
    ABELE_REQUIRE(holds, E0712,
                  {.what = std::move(what),
                   .found = std::move(found),
                   .expected = std::move(expected),
                   .remedy = "wrap the same model with the same options as when the program was saved"});
  };
  const auto numbers = [](bool training, int64_t iterations, int64_t accumulation, int64_t replicas, int64_t parts,
                          int64_t processes, int64_t of_replica) {
    return cat(training ? "training" : "inference", ", deviceIterations ", iterations, ", gradientAccumulation ",
               accumulation, ", replicationFactor ", replicas, ", input groups ", parts, ", processes ", processes,
               of_replica == 1           ? ""
               : of_replica == processes ? " with one replica"
                                         : cat(" with ", processes / of_replica, " replicas"));
  };
  const std::string found = numbers(
      options.training, options.device_iterations / compile::stepsPerCall(options), options.gradient_accumulation,
      options.replicas, options.replicas / options.input_group_size, options.processes.count, options.processes.stages);
  const std::string expected =
      numbers(executable.training, executable.device_iterations, executable.accumulation, executable.replicas,
              executable.inputParts(), executable.processes * executable.stage_processes, executable.stage_processes);
  require(found == expected, "the program was compiled with other options", found, expected);
  std::map<std::string, const at::Tensor*> by_name;
  for (const capture::ModelTensor& m : model) by_name.emplace(m.name, m.tensor);
  for (const exe::External& external : executable.externals) {
    if (external.slot < 0) continue;
    if (external.kind != exe::ExternalKind::kParameter && external.kind != exe::ExternalKind::kBuffer) continue;
    auto it = by_name.find(external.name);
    require(it != by_name.end(), "the program was compiled for another model", cat("no tensor ", external.name),
            external.name);
    const Type& type = executable.slots[external.slot].type;
    const Type own = compile::typeOf(*it->second);
    // A tensor with gaps is stored as its flat extent. A tensor with groups has a value for each group.
    std::vector<int64_t> sizes = own.sizes;
    if (!sizes.empty() && isGrouped(program, external.name)) sizes.erase(sizes.begin());
    const bool same_size = sizes == type.sizes || (type.sizes.size() == 1 && type.numel() > own.numel());
    require(own.dtype == type.dtype && same_size, "the program was compiled for another model",
            cat(external.name, ": ", own.str()), cat(external.name, ": ", type.str()));
  }
}

/// A file may hold anything that its reader's checks accept, such as other tensor types than the model's, or operators
/// with arguments that they refuse.
void loadOrRefuse(Compiled& compiled, const compile::ProgramOptions& options) {
  const auto refuse = [](const char* found) {
    throwUser(ErrorCode::E0501, {.what = "a program that cannot be loaded onto its devices",
                                 .found = found,
                                 .remedy = "save the program again with this version of Abele"});
  };
  try {
    load(compiled, options, compile::makeGenerator(options));
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  } catch (const std::exception& error) {  // also errors of ATen
    refuse(error.what());
  }
}

/// Throws E0705 if the session did not compile the program itself.
const Compiled& requireMadeHere(const Compiled& compiled, const char* what) {
  ABELE_REQUIRE(compiled.is_made_here, E0705,
                {.what = cat(what, " needs a program that was compiled by this process"),
                 .found = "one that was loaded from a file or found in the cache",
                 .remedy = "compile without the cache to look at graph and plan"});
  return compiled;
}

}  // namespace

void Session::load(compile::CompiledProgram program, const std::vector<capture::ModelTensor>& model,
                   const compile::Poll& poll, const compile::MetaTensors& meta) {
  const AtEnd busy = impl_->enter("load()");
  const c10::InferenceMode not_inference(false);  // as in compile()
  checkFits(program, impl_->options, model);
  compile::requireMemory(program.executable, impl_->options);
  ABELE_REQUIRE(
      !program.constants.empty() || exe::externalsOf(program.executable, exe::ExternalKind::kConstant).empty(), E0712,
      {.what = "the program has no constants, because it is an entry of a cache",
       .remedy = "save() a compiled model, and load that file"});
  const bool has_own_weights_alone = meta.any && impl_->options.processes.stages > 1;
  const auto hasRange = [](const exe::External& external) {
    return std::ranges::any_of(external.copies, [](const exe::ExternalCopy& copy) { return copy.dim >= 0; });
  };
  ABELE_REQUIRE(
      !has_own_weights_alone || std::ranges::none_of(program.executable.externals, hasRange), E0711,
      {.what = "processes of this program hold ranges of weights, and a model on the meta device has no memory "
               "for the rest of them",
       .remedy = "make the model with contents, or compile the program for the model on the meta device"});
  auto next = std::make_unique<Compiled>();
  static_cast<compile::CompiledProgram&>(*next) = std::move(program);
  next->model = model;
  next->meta = meta;
  next->has_own_weights_alone = has_own_weights_alone;
  next->peers = processes::joinPeers(impl_->options);
  const bool is_divided = !next->divided_on.empty();
  const std::string here = is_divided ? processes::machineOfTrials(impl_->options, poll) : "";
  // Before the check of the machine, so that all processes fail alike.
  if (next->peers)
    processes::requireSameProgram(*next->peers, cat(keyOf(*next), here), impl_->options.output_rank, poll);
  ABELE_REQUIRE(here == next->divided_on, E0712,
                {.what = "the program's operators were divided by trials whose results may be others here",
                 .found = here,
                 .expected = next->divided_on,
                 .remedy = "compile the model here, and load weights or a checkpoint"});
  {
    at::NoGradGuard no_grad;
    loadOrRefuse(*next, impl_->options);
  }
  connectLinks(*next, impl_->options, poll);
  impl_->adopt(std::move(next));
  impl_->from_cache = false;
  impl_->capture_s = impl_->compile_s = 0;
}

bool Session::wasDividedAlike(const compile::CompiledProgram& program, const compile::Poll& poll) const {
  return program.divided_on.empty() || processes::isMachineOfTrials(program.divided_on, impl_->options, poll);
}

const ir::Graph& Session::graph() const { return requireMadeHere(impl_->require("graph()"), "graph()").graph; }
const plan::Plan& Session::plan() const { return requireMadeHere(impl_->require("plan()"), "plan()").plan; }
plan::MemoryReport Session::memoryReport() const {
  const Compiled& compiled = requireMadeHere(impl_->require("memoryReport()"), "memoryReport()");
  return plan::reportMemory(compiled.graph, compiled.plan);
}
const exe::Executable& Session::executable() const { return impl_->require("executable()").executable; }

const std::string& Session::capturedText() const {
  const Compiled& compiled = requireMadeHere(impl_->require("capturedText()"), "capturedText()");
  if (impl_->captured_text.empty()) impl_->captured_text = ir::print(compiled.captured);
  return impl_->captured_text;
}

const std::vector<std::string>& Session::tensorNames() const { return impl_->require("tensorNames()").tensor_names; }

const plan::MemoryLimits& Session::deviceMemory() const { return impl_->options.device_memory; }

std::vector<int> Session::stageDevices() const {
  std::vector<int> devices;
  for (const compile::CompiledStage& stage : impl_->require("stageDevices()").stages)
    if (stage.replica == 0) devices.push_back(stage.device);
  return devices;
}

}  // namespace abele::session
