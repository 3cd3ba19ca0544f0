#include "exe/executable.h"

#include <algorithm>

#include "base/cat.h"

namespace abele::exe {
namespace {

// --- text ------------------------------------------------------------------------------------------------------------
const char* kindName(GroupKind kind) {
  static constexpr const char* kNames[] = {"persistent", "stash", "transient", "input", "output"};
  return kNames[static_cast<int>(kind)];
}
const char* kindName(ExternalKind kind) {
  static constexpr const char* kNames[] = {"parameter", "buffer", "constant", "accumulator", "state"};
  return kNames[static_cast<int>(kind)];
}

template <class T, class Fn>
std::string joined(const std::vector<T>& items, Fn&& text) {
  std::string out;
  for (const T& item : items) out += (out.empty() ? "" : ", ") + text(item);
  return "[" + out + "]";
}

std::string slotText(int64_t slot) { return slot < 0 ? std::string("none") : cat("$", slot); }

std::string argText(const Arg& a, Arg::Kind kind) {
  using Kind = Arg::Kind;
  auto number = [](auto v) { return cat(v); };
  switch (kind) {
    case Kind::kNone: return "none";
    case Kind::kBool: return a.i ? "true" : "false";
    case Kind::kInt: return cat(a.i);
    case Kind::kDouble: return cat("f:", a.d);
    case Kind::kComplex: return cat("c:", a.d, ",", a.d2);
    case Kind::kString: return cat('"', a.s, '"');
    case Kind::kIntList: return joined(a.ints, number);
    case Kind::kDoubleList: return joined(a.doubles, number);
    case Kind::kBoolList: return joined(a.ints, [](int64_t v) { return std::string(v ? "true" : "false"); });
    case Kind::kStringList: return joined(a.strings, [](const std::string& s) { return cat('"', s, '"'); });
    case Kind::kDevice: return cat("device:", a.s);
    case Kind::kGenerator: return "generator";
    case Kind::kId: return slotText(a.i);
    case Kind::kIdList:
    case Kind::kOptionalIdList: return joined(a.ints, slotText);
    case Kind::kNumber: return "number:" + argText(a, a.number_kind);
  }
  return "?";
}

std::string instructionText(const Executable& exe, const Instruction& i) {
  std::string out = "    ";
  std::string results;
  for (const auto& group : i.results) {
    if (!results.empty()) results += ", ";
    results += group.size() == 1 ? slotText(group[0]) : joined(group, slotText);
  }
  if (!results.empty()) out += results + " = ";
  out += i.op + "(";
  for (size_t a = 0; a < i.args.size(); ++a) out += (a ? ", " : "") + argText(i.args[a], i.args[a].kind);
  out += ")";
  if (i.random_draws >= 0) out += cat(" draws=", i.random_draws, "@", i.random_offset);
  if (i.source >= 0) out += cat("  # ", exe.sources[i.source]);
  return out + "\n";
}

}  // namespace

const char* directionName(Direction d) {
  static constexpr const char* kNames[] = {"forward", "backward", "weight-gradient", "update"};
  return kNames[static_cast<int>(d)];
}

int64_t Executable::inputParts() const {
  return input_part.empty() ? 1 : 1 + *std::max_element(input_part.begin(), input_part.end());
}

std::string print(const Executable& exe) {
  std::string out =
      cat("executable ", exe.training ? "training" : "inference", " device_iterations=", exe.device_iterations,
          " accumulation=", exe.accumulation, " micro_batches=", exe.micro_batches, " random_draws=", exe.random_draws);
  if (exe.replicas > 1)
    out += cat(" replicas=", exe.replicas, " input_part=", joined(exe.input_part, [](int32_t p) { return cat(p); }));
  if (exe.processes > 1) out += cat(" processes=", exe.processes);
  out += "\n";
  for (size_t g = 0; g < exe.groups.size(); ++g) {
    const Group& group = exe.groups[g];
    out += cat("  group ", g, " ", group.name, " ", kindName(group.kind), " worker=", group.worker,
               " frames=", group.frames, " bytes=", group.frame_bytes, group.off_chip ? " off-chip" : "", "\n");
  }
  for (size_t s = 0; s < exe.slots.size(); ++s) {
    const Slot& slot = exe.slots[s];
    out += cat("  $", s, " ", slot.name, " ", slot.type.str(), " group=", slot.group, " at=", slot.offset_bytes, "\n");
  }
  for (const External& e : exe.externals)
    out += cat("  external ", e.name, " ", kindName(e.kind), " ", slotText(e.slot), " owner=", e.owner,
               " initial=", e.initial,
               e.replica_slots.empty() ? "" : " by replica " + joined(e.replica_slots, slotText), "\n");
  out += "  inputs " + joined(exe.input_slots, slotText) + " outputs " + joined(exe.output_slots, slotText) + "\n";
  for (size_t s = 0; s < exe.segments.size(); ++s) {
    out += cat("  segment ", s, " ", exe.segments[s].name, "\n");
    for (const Instruction& i : exe.segments[s].instructions) out += instructionText(exe, i);
  }
  for (size_t w = 0; w < exe.workers.size(); ++w) {
    out += cat("  worker ", w, " device=", exe.workers[w].device);
    if (exe.replicas > 1) out += cat(" replica=", exe.workers[w].replica);
    out += "\n";
    for (const Action& a : exe.workers[w].actions) {
      out += cat("    ", exe.segments[a.segment].name, " micro_batch=", a.micro_batch);
      for (const Wait& wait : a.waits)
        out += cat(" wait(", exe.segments[wait.segment].name, ">=", wait.completions, ")");
      for (const FrameUse& f : a.fetches)
        out += cat(" fetch(", exe.groups[f.group].name, "[", f.frame, "]", f.writes ? " to write" : "", ")");
      for (const FrameUse& f : a.releases) out += cat(" release(", exe.groups[f.group].name, "[", f.frame, "])");
      out += '\n';
    }
  }
  return out;
}

}  // namespace abele::exe
