// Describes the fields of an executable once, for .abx files and for tests that change fields. Private to exe/.
#pragma once

#include "exe/bytes.h"
#include "exe/executable.h"

namespace abele::exe {

inline constexpr const char* kExecutableMagic = "ABELEABX";
inline constexpr uint32_t kExecutableVersion = 11;

// In the namespace of the enums, so that the Reader finds them by argument-dependent lookup.
inline bool isKnown(GroupKind k) { return k <= GroupKind::kOutput; }
inline bool isKnown(Direction d) { return d <= Direction::kUpdate; }
inline bool isKnown(ExternalKind k) { return k <= ExternalKind::kState; }

// The fields of each struct, in the order of the file.
template <class A>
void visit(A& a, Arg& x) {
  visitFields(a, x.kind, x.number_kind, x.i, x.d, x.d2, x.s, x.ints, x.doubles, x.strings);
}
template <class A>
void visit(A& a, Group& x) {
  visitFields(a, x.kind, x.worker, x.frames, x.frame_bytes, x.name, x.off_chip);
}
template <class A>
void visit(A& a, Slot& x) {
  visitFields(a, x.group, x.offset_bytes, x.type, x.name);
}
template <class A>
void visit(A& a, Wait& x) {
  visitFields(a, x.segment, x.completions);
}
template <class A>
void visit(A& a, ExternalCopy& x) {
  visitFields(a, x.slots, x.dim, x.begin);
}
template <class A>
void visit(A& a, External& x) {
  visitFields(a, x.name, x.kind, x.slot, x.owner, x.initial, x.replica_slots, x.copies);
}
template <class A>
void visit(A& a, Normals& x) {
  visitFields(a, x.count, x.before, x.spare);
}
template <class A>
void visit(A& a, Instruction& x) {
  visitFields(a, x.op, x.args, x.results, x.writes, x.random_draws, x.random_offset, x.source, x.normals, x.draws_vary);
}
template <class A>
void visit(A& a, Segment& x) {
  visitFields(a, x.stage, x.direction, x.name, x.instructions, x.replica);
}
template <class A>
void visit(A& a, FrameUse& x) {
  visitFields(a, x.group, x.frame, x.writes);
}
template <class A>
void visit(A& a, Action& x) {
  visitFields(a, x.segment, x.micro_batch, x.waits, x.fetches, x.releases);
}
template <class A>
void visit(A& a, WorkerProgram& x) {
  visitFields(a, x.device, x.actions, x.replica, x.space, x.from, x.to, x.process);
}
template <class A>
void visit(A& a, Executable& x) {
  visitFields(a, x.training, x.device_iterations, x.accumulation, x.micro_batches, x.random_draws, x.normals,
              x.replicas, x.processes, x.stage_processes, x.input_part, x.groups, x.slots, x.segments, x.workers,
              x.externals, x.input_slots, x.output_slots, x.sources, x.fetch_ahead);
}

}  // namespace abele::exe
