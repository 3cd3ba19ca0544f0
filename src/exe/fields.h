// Describes the fields of an executable once, for .abx files and for tests that change fields. Private to exe/.
#pragma once

#include "exe/bytes.h"
#include "exe/executable.h"

namespace abele::exe {

inline constexpr const char* kExecutableMagic = "ABELEABX";
inline constexpr uint32_t kExecutableVersion = 10;

// In the namespace of the enums, where the Reader finds them by argument.
inline bool isKnown(GroupKind k) { return k <= GroupKind::kOutput; }
inline bool isKnown(Direction d) { return d <= Direction::kUpdate; }
inline bool isKnown(ExternalKind k) { return k <= ExternalKind::kState; }

// The fields of each struct, in the order of the file.
template <class A>
void visit(A& a, Arg& x) {
  a(x.kind);
  a(x.number_kind);
  a(x.i);
  a(x.d);
  a(x.d2);
  a(x.s);
  visit(a, x.ints);
  visit(a, x.doubles);
  visit(a, x.strings);
}
template <class A>
void visit(A& a, Group& x) {
  a(x.kind);
  a(x.worker);
  a(x.frames);
  a(x.frame_bytes);
  a(x.name);
  a(x.off_chip);
}
template <class A>
void visit(A& a, Slot& x) {
  a(x.group);
  a(x.offset_bytes);
  visit(a, x.type);
  a(x.name);
}
template <class A>
void visit(A& a, Wait& x) {
  a(x.segment);
  a(x.completions);
}
template <class A>
void visit(A& a, External& x) {
  a(x.name);
  a(x.kind);
  a(x.slot);
  a(x.owner);
  a(x.initial);
  visit(a, x.replica_slots);
  visit(a, x.copies);
}
template <class A>
void visit(A& a, Normals& x) {
  a(x.count);
  a(x.before);
  a(x.spare);
}
template <class A>
void visit(A& a, Instruction& x) {
  a(x.op);
  visit(a, x.args);
  visit(a, x.results);
  visit(a, x.writes);
  a(x.random_draws);
  a(x.random_offset);
  a(x.source);
  visit(a, x.normals);
  a(x.draws_vary);
}
template <class A>
void visit(A& a, Segment& x) {
  a(x.stage);
  a(x.direction);
  a(x.name);
  visit(a, x.instructions);
  a(x.replica);
}
template <class A>
void visit(A& a, FrameUse& x) {
  a(x.group);
  a(x.frame);
  a(x.writes);
}
template <class A>
void visit(A& a, Action& x) {
  a(x.segment);
  a(x.micro_batch);
  visit(a, x.waits);
  visit(a, x.fetches);
  visit(a, x.releases);
}
template <class A>
void visit(A& a, WorkerProgram& x) {
  a(x.device);
  visit(a, x.actions);
  a(x.replica);
  a(x.space);
  a(x.from);
  a(x.to);
  a(x.process);
}
template <class A>
void visit(A& a, Executable& x) {
  a(x.training);
  a(x.device_iterations);
  a(x.accumulation);
  a(x.micro_batches);
  a(x.random_draws);
  visit(a, x.normals);
  a(x.replicas);
  a(x.processes);
  a(x.stage_processes);
  visit(a, x.input_part);
  visit(a, x.groups);
  visit(a, x.slots);
  visit(a, x.segments);
  visit(a, x.workers);
  visit(a, x.externals);
  visit(a, x.input_slots);
  visit(a, x.output_slots);
  visit(a, x.sources);
  a(x.fetch_ahead);
}

}  // namespace abele::exe
