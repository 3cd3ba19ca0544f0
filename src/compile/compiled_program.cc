// Bytes of a CompiledProgram: one description of the fields for both directions, as in exe/codec.cc.
#include "compile/compiled_program.h"

#include "base/error.h"
#include "compile/tensor_bytes.h"
#include "exe/bytes.h"

namespace abele::compile {

bool isKnown(OutputMode mode) { return mode <= OutputMode::kSum; }
bool isKnown(CommGroup type) { return type <= CommGroup::kNone; }

template <class A>
void visitTensors(A& a, std::vector<at::Tensor>& tensors) {
  visitEach(a, tensors, [&](at::Tensor& tensor) { visitTensor(a, tensor); });
}

template <class A>
void visit(A& a, CompiledResult& x) {
  visitFields(a, x.target, x.type);
}
template <class A>
void visit(A& a, WrittenArgument& x) {
  visitFields(a, x.argument, x.target, x.type);
}
template <class A>
void visit(A& a, CompiledAnchor& x) {
  visitFields(a, x.name, x.target, x.type, x.updated);
  int32_t mode = static_cast<int32_t>(x.mode);
  a(mode);
  x.mode = static_cast<OutputMode>(mode);
  if (mode < 0 || !isKnown(x.mode)) exe::reject("an output mode that this version does not know", cat(mode));
  a(x.period);
}
template <class A>
void visit(A& a, CompiledStage& x) {
  visitFields(a, x.name, x.device, x.worker, x.replica);
}
template <class A>
void visit(A& a, ReplicaGrouping& x) {
  visitFields(a, x.parameter, x.type, x.shards, x.one_per_replica);
}

template <class A>
void visit(A& a, OptimizerSpec& x) {
  using Kind = passes::OptimizerRules::Kind;
  int32_t kind = static_cast<int32_t>(x.rules.kind);
  a(kind);
  if (kind < 0 || kind > static_cast<int32_t>(allOptimizers().size()))
    exe::reject("an optimizer that this version does not know");
  x.rules.kind = static_cast<Kind>(kind);
  exe::visitMap(a, x.rules.group_of, [&](auto& group) { a(group); });
  visitEach(a, x.rules.groups, [&](passes::OptimizerRules::Group& group) {
    // Binds every field by name: a new field does not compile until it is added here, with a new version of the format.
    auto& [momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction] = group;
    visitFields(a, momentum, torch_dampening, amsgrad, centered, tf_variant, bias_correction);
  });
  visitFields(a, x.rules.accumulator, x.rules.first_moment, x.rules.second_moment, x.rules.max_grad_norm,
              x.loss_scaling);
  visitEach(a, x.groups,
            [&](std::map<std::string, double>& values) { exe::visitMap(a, values, [&](double& value) { a(value); }); });
}

template <class A>
void visit(A& a, CompiledProgram& x) {
  std::string executable;
  if constexpr (!A::kReads) executable = exe::encode(x.executable);
  a(executable);
  if constexpr (A::kReads) x.executable = exe::decode(executable);
  visitFields(a, x.optimizer, x.input_types, x.results);
  visitTensors(a, x.host_results);
  visitFields(a, x.written, x.anchors);
  visitTensors(a, x.constants);
  visitFields(a, x.stages, x.groupings, x.tensor_names, x.schedule, x.schedule_reason, x.divided_on, x.key);
}

namespace {

/// Returns true if each constant has the number of elements that the executable expects.
bool haveTypes(const std::vector<at::Tensor>& constants, const exe::Executable& executable) {
  if (constants.size() != executable.externals.size()) return false;
  for (size_t i = 0; i < constants.size(); ++i) {
    const exe::External& external = executable.externals[i];
    if (external.kind != exe::ExternalKind::kConstant || external.slot < 0) continue;
    const Type& type = executable.slots[external.slot].type;
    if (!constants[i].defined() || static_cast<DType>(constants[i].scalar_type()) != type.dtype) return false;
    if (constants[i].sizes() != at::IntArrayRef(type.sizes) && constants[i].numel() < type.extent()) return false;
  }
  return true;
}

/// Checks the rules that a session relies on and exe::verify does not check.
void verify(const CompiledProgram& program) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) exe::reject(what);
  };
  const exe::Executable& executable = program.executable;
  // A result with this type. The host allocates the target tensors by this type.
  const auto isTarget = [&](int64_t target, const Type& type) {
    if (target < 0 || target >= executable.numOutputs() || executable.output_slots[target] < 0) return false;
    const Type& made = executable.slots[executable.output_slots[target]].type;
    return made.dtype == type.dtype && made.sizes == type.sizes;
  };
  require(executable.numInputs() <= static_cast<int64_t>(program.input_types.size()),
          "fewer inputs than the executable reads");
  size_t on_host = 0;
  for (const CompiledResult& result : program.results) {
    require(result.target == -1 || isTarget(result.target, result.type), "a result that the executable does not make");
    on_host += result.target < 0;
  }
  require(on_host == program.host_results.size(), "another number of host results than it names");
  for (const WrittenArgument& written : program.written)
    require(isTarget(written.target, written.type) && written.argument >= 0 &&
                written.argument < static_cast<int64_t>(program.input_types.size()),
            "a written argument that does not exist");
  for (const CompiledAnchor& anchor : program.anchors)
    require(isTarget(anchor.target, anchor.type) && anchor.period >= 1 && anchor.updated >= -1 &&
                anchor.updated < static_cast<int64_t>(executable.externals.size()),
            "an anchor that does not exist");
  for (const CompiledStage& stage : program.stages)
    require(stage.worker >= 0 && stage.worker < static_cast<int64_t>(executable.workers.size()),
            "a stage on a device that does not exist");
  const int64_t stages = static_cast<int64_t>(program.stages.size()) / executable.replicas;
  require(stages * executable.replicas == static_cast<int64_t>(program.stages.size()), "stages of half a replica");
  for (const CompiledStage& stage : program.stages)
    require(stage.replica >= 0 && stage.replica < executable.replicas, "a stage of a replica that does not exist");
  for (const exe::Segment& segment : executable.segments)
    require(segment.stage >= 0 && segment.stage < stages, "a segment of a stage that does not exist");
  require(program.constants.empty() || haveTypes(program.constants, executable), "constants of other types");
  require(program.optimizer.groups.size() == program.optimizer.rules.groups.size(),
          "numbers of other parameter groups");
  for (const auto& [name, group] : program.optimizer.rules.group_of)
    require(group >= 0 && static_cast<size_t>(group) < program.optimizer.rules.groups.size(),
            "a parameter of a group that does not exist");
  for (const ReplicaGrouping& grouping : program.groupings)
    require(fits(grouping, executable.replicas), "groups of replicas that do not divide them");
}

}  // namespace

bool callsHost(const CompiledProgram& program) {
  for (const exe::Segment& segment : program.executable.segments)
    for (const exe::Instruction& instruction : segment.instructions)
      if (instruction.op == "abele_op::host_call") return true;
  return false;
}

std::string encode(const CompiledProgram& program) {
  ABELE_REQUIRE(!callsHost(program), E0712,
                {.what = "a program that calls a function on the host (CPU) cannot be saved",
                 .remedy = "compile it in the process that runs it"});
  ABELE_REQUIRE(program.own_streams.empty(), E0712,
                {.what = "a program that draws from a generator of its own cannot be saved",
                 .found = inLanguage("an at::Generator of this process"),
                 .remedy = "leave the generator out, or draw the numbers before the call and pass them as an input"});
  return exe::sealed(kProgramMagic.data(), kProgramVersion, program);
}

CompiledProgram decodeProgram(std::string_view bytes) {
  auto program = exe::unsealed<CompiledProgram>(kProgramMagic.data(), kProgramVersion, bytes, "a compiled program");
  verify(program);
  return program;
}

}  // namespace abele::compile
