// All that a runtime needs to run a training or inference step, without Graph, Plan and LibTorch. exe/build/ makes it,
// runtime/ runs it, print() shows it. Docs: docs/executable.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/arg.h"
#include "base/normals.h"
#include "base/type.h"

namespace abele::exe {

/// Memory with one lifetime. The bytes of a group are one allocation per frame; Executable::frameOf gives the frame of
/// a micro-batch.
///
/// Replicas are copies of the program in one process. Each has its own workers, segments and groups, but they share
/// memory that only updates write (weights, optimizer state). In every table the entries of replica r follow those of
/// replica r - 1, in the same order. Every replica numbers its micro-batches 0..micro_batches-1 over the whole step
/// (device iteration slowest). All processes have the same tables.
enum class GroupKind : uint8_t {
  kPersistent,  // weights, buffers, constants, accumulators, optimizer state: lives as long as the executable is loaded
  kStash,       // values of a stage that outlive one task (forward to backward, stage to stage); a ring of frames
  kTransient,   // values that live inside one task; a frame for each worker that runs such tasks
  kInput,       // no bytes: the caller's tensors, one frame per micro-batch, bound at each step
  kOutput,      // no bytes: rows of the result tensors, one frame per micro-batch; frames may stay unbound
};
struct Group {
  GroupKind kind = GroupKind::kTransient;
  int32_t worker = -1;  // first worker that uses it; -1 for shared groups
  int32_t frames = 1;
  int64_t frame_bytes = 0;  // offsets inside a frame are multiples of 64
  std::string name;         // "stash/stage2"
  bool off_chip = false;    // outside the device's memory except while actions use it; persistent and stash only
  bool operator==(const Group&) const = default;
};

/// A tensor in a group. Several slots may overlap (views, reuse of dead memory).
struct Slot {
  int32_t group = -1;
  int64_t offset_bytes = 0;
  Type type;
  std::string name;  // value name or "%12", for reports
  bool operator==(const Slot&) const = default;
};

/// One call. op is an ATen name or "abele::...", a row of base/instructions.def or base/optimizers.def. Ids in args and
/// results are slot indices. For an operand that is written in place, the id is the slot of the written region.
struct Instruction {
  std::string op;
  std::vector<Arg> args;
  std::vector<std::vector<int32_t>> results;  // per schema return; -1 = drop it
  std::vector<int32_t> writes;                // slots among the args that it overwrites or updates in place
  int64_t random_draws = -1;                  // >= 0: random op
  int64_t random_offset = -1;                 // within a micro-batch
  int32_t source = -1;                        // index into Executable::sources
  Normals normals = {};                       // normal numbers drawn one at a time; random_draws does not include their
                                              // draws
  bool draws_vary = false;                    // the number of draws depends on values
  bool isRandom() const { return random_draws > 0 || normals.count > 0 || draws_vary; }
  bool operator==(const Instruction&) const = default;
};

enum class Direction : uint8_t { kForward, kBackward, kWeightGrad, kUpdate };
inline constexpr std::array<std::string_view, 4> kDirectionNames = {"forward", "backward", "weight-gradient", "update"};
inline constexpr std::array<std::string_view, 4> kTaskNames = {"fwd", "bwd", "wgrad", "update"};
const char* directionName(Direction d);
/// "fwd/2": the name of a segment, unless it is a part of one or a copy.
std::string taskName(Direction d, int32_t stage);

/// The work of one (stage, direction) in one replica, or a part of it. Segment i completes once per action; its counter
/// is i. Workers that share a segment complete it in the order of micro-batches.
struct Segment {
  int32_t stage = 0;
  Direction direction = Direction::kForward;
  std::string name;  // "fwd/2"
  std::vector<Instruction> instructions;
  int32_t replica = 0;
  bool operator==(const Segment&) const = default;
};

struct Wait {
  int32_t segment = -1;
  int64_t completions = 0;
  bool operator==(const Wait&) const = default;
};
/// A use of one frame of an off-chip group. writes: the action changes it.
struct FrameUse {
  int32_t group = -1;
  int32_t frame = 0;
  bool writes = false;
  bool operator==(const FrameUse&) const = default;
};
/// Runs a segment for a micro-batch once all waits hold. For kUpdate, micro_batch is the last one of its group.
struct Action {
  int32_t segment = -1;
  int32_t micro_batch = 0;
  std::vector<Wait> waits;
  std::vector<FrameUse> fetches = {};   // frames to copy to the device before it runs
  std::vector<FrameUse> releases = {};  // frames that may leave the device after it, because the next action does not
                                        // need them
  bool operator==(const Action&) const = default;
};
/// The actions of one worker. A worker either computes on a device or is a link. A link only runs segments of
/// abele::transfer: it copies values of another space into the device's memory space while the device computes. A link
/// between processes has two workers: one sends and the other receives, segment by segment in the same order. Links
/// follow the other workers of their replica.
struct WorkerProgram {
  int32_t device = 0;
  std::vector<Action> actions;  // one step, in order
  int32_t replica = 0;
  int32_t space = 0;    // space of the device: workers of one space share memory
  int32_t from = -1;    // for a link: the space from which it copies values
  int32_t to = -1;      // for a link that sends: the space, in another process, that receives its values
  int32_t process = 0;  // index among the processes that hold the stages of one replica; a space is in one process
  bool isLink() const { return from >= 0 || to >= 0; }
  bool operator==(const WorkerProgram&) const = default;
};
/// True for a link from its space to itself: it adds up gradient sums with other processes while other workers compute.
inline bool addsUp(const WorkerProgram& worker) { return worker.from >= 0 && worker.from == worker.to; }

/// The contents of an external, or a range of them, for another memory space. The host fills it, too.
struct ExternalCopy {
  std::vector<int32_t> slots;  // by replica
  int32_t dim = -1;            // the range is along this dimension, as long as the slot; -1: all contents
  int64_t begin = 0;
  bool operator==(const ExternalCopy&) const = default;
};

/// A persistent tensor that the host reads or writes. Same order as ir::Graph::externals (unused ones have slot -1).
enum class ExternalKind : uint8_t { kParameter, kBuffer, kConstant, kAccumulator, kState };
struct External {
  std::string name;
  ExternalKind kind = ExternalKind::kConstant;
  int32_t slot = -1;  // slot in replica 0
  int32_t owner = -1;
  double initial = 0;
  std::vector<int32_t> replica_slots = {};  // by replica; empty: all use `slot`
  std::vector<ExternalCopy> copies = {};
  int32_t slotOf(int32_t replica) const { return replica_slots.empty() ? slot : replica_slots[replica]; }
  bool operator==(const External&) const = default;
};

struct Executable {
  bool training = false;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t micro_batches = 1;  // per step and replica: device_iterations * accumulation
  int64_t random_draws = 0;   // per micro-batch
  Normals normals = {};       // per micro-batch
  int64_t replicas = 1;
  /// Number of processes that run this executable at the same time, each with replicas of its own. All their gradient
  /// sums are added up.
  int64_t processes = 1;
  /// Number of processes that hold the stages of one replica; each runs its own workers (WorkerProgram::process).
  int64_t stage_processes = 1;
  std::vector<int32_t> input_part;  // by replica: the part of the inputs that it takes; empty: {0}
  std::vector<Group> groups;
  std::vector<Slot> slots;
  std::vector<Segment> segments;
  std::vector<WorkerProgram> workers;
  std::vector<External> externals;
  std::vector<int32_t> input_slots;   // by replica and tensor argument; -1 = unused
  std::vector<int32_t> output_slots;  // by replica and kResult target; in kOutput groups
  std::vector<std::string> sources;
  bool fetch_ahead = true;  // an action's fetches begin together with the previous action; false: after that action has
                            // released its frames
  bool isRandom() const { return random_draws > 0 || normals.count > 0; }
  /// The frame of a micro-batch in a group.
  int64_t frameOf(int32_t group, int64_t micro_batch) const {
    const Group& g = groups[group];
    const bool is_bound = g.kind == GroupKind::kInput || g.kind == GroupKind::kOutput;
    return is_bound ? micro_batch : micro_batch % g.frames;
  }
  /// Micro-batches of a step in all replicas of all processes. The random stream covers all of them.
  int64_t allMicroBatches() const { return micro_batches * replicas * processes; }
  /// Number of arguments, and of results, of one replica.
  int64_t numInputs() const { return static_cast<int64_t>(input_slots.size()) / replicas; }
  int64_t numOutputs() const { return static_cast<int64_t>(output_slots.size()) / replicas; }
  /// Number of workers that compute, in all replicas.
  int64_t numComputing() const;
  /// The process, of stage_processes, that has the memory of a group; -1: the caller's tensors, which every process
  /// has.
  int32_t processOf(int32_t group) const;
  int32_t inputPart(int32_t replica) const { return input_part.empty() ? 0 : input_part[replica]; }
  /// Number of different parts of the inputs that replicas take.
  int64_t inputParts() const;
  /// Position of a replica's micro-batch among those of all replicas, replica fastest.
  int64_t globalMicroBatch(int64_t micro_batch, int32_t replica) const { return micro_batch * replicas + replica; }
  /// Its position among those of all processes, whose replicas are consecutive. This is its place in the random stream.
  int64_t globalMicroBatch(int64_t micro_batch, int32_t replica, int64_t process) const {
    return (micro_batch * processes + process) * replicas + replica;
  }
  bool operator==(const Executable&) const = default;
};

/// All slots that hold contents of the external for a replica: its own slot and the copies for other memory spaces.
std::vector<int32_t> slotsOf(const External& external, int32_t replica);
/// The copy that has a slot of the external; null for a slot of its own.
const ExternalCopy* copyWith(const External& external, int32_t slot);
/// Indices of the externals of a kind that have memory.
std::vector<int32_t> externalsOf(const Executable& executable, ExternalKind kind);
/// By result (Executable::output_slots): the process, of stage_processes, whose worker makes it; -1: no process makes
/// it.
std::vector<int32_t> processesOfOutputs(const Executable& executable);

/// Bytes of a worker's groups that are always on its device, without the caller's tensors. Groups without a worker
/// count for worker 0.
int64_t residentBytes(const Executable& executable, int32_t worker);
/// Largest number of bytes of off-chip frames that a worker has fetched at one time.
int64_t fetchedBytes(const Executable& executable, int32_t worker);
/// The sum of residentBytes and fetchedBytes.
int64_t peakBytes(const Executable& executable, int32_t worker);
/// Bytes of all off-chip groups.
int64_t offChipBytes(const Executable& executable);
/// The text form and its inverse: docs/executable.md. parse throws UserError E0501 that lists every mistake with its
/// line, or the findings of verify.
std::string print(const Executable& executable);
Executable parse(std::string_view text);
/// All findings about ids, sizes and offsets that a runtime relies on; empty = good.
std::vector<std::string> verify(const Executable& executable);
/// The binary form (.abx), docs/executable.md: versioned and checksummed. decode throws E0501 for bytes that encode did
/// not make; its result is verified.
std::string encode(const Executable& executable);
Executable decode(const std::string& bytes);

}  // namespace abele::exe
