// Text form of an executable: print and parse are inverse. Grammar: docs/executable.md.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <ranges>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/cursor.h"
#include "base/error.h"
#include "base/joined.h"
#include "exe/executable.h"

namespace abele::exe {
namespace {

using text::Cursor;
using text::fail;

constexpr std::array<std::string_view, 5> kGroupKinds = {"persistent", "stash", "transient", "input", "output"};
constexpr std::array<std::string_view, 5> kExternalKinds = {"parameter", "buffer", "constant", "accumulator", "state"};
constexpr size_t kShownFindings = 20;

constexpr text::Number<Executable> kHeaderNumbers[] = {
    {"device_iterations", &Executable::device_iterations, text::kSaidAlways},
    {"accumulation", &Executable::accumulation, text::kSaidAlways},
    {"micro_batches", &Executable::micro_batches, text::kSaidAlways},
    {"random_draws", &Executable::random_draws, text::kSaidAlways},
    {"replicas", &Executable::replicas, 1},
    {"processes", &Executable::processes, 1},
    {"stage_processes", &Executable::stage_processes, 1}};
constexpr text::Number<WorkerProgram, int32_t> kWorkerNumbers[] = {{"replica", &WorkerProgram::replica, 0},
                                                                   {"space", &WorkerProgram::space, 0},
                                                                   {"from", &WorkerProgram::from, -1},
                                                                   {"to", &WorkerProgram::to, -1},
                                                                   {"process", &WorkerProgram::process, 0}};
template <size_t kSize>
int indexIn(const std::array<std::string_view, kSize>& names, std::string_view name, const char* what) {
  const auto* at = std::ranges::find(names, name);
  if (at == names.end()) fail("unknown ", what, " '", name, "'");
  return static_cast<int>(at - names.begin());
}

// --- names -----------------------------------------------------------------------------------------------------------
//
// True if the name needs no quotes: it has only letters, digits and these marks, and does not start with a word that
// starts a line.
bool isPlain(std::string_view name) {
  constexpr std::string_view kMarks = "_./%:-";
  constexpr std::string_view kFirstWords[] = {"group", "external", "inputs", "source", "segment", "worker", "none"};
  const std::string_view first = Cursor(name).peekWord();
  if (std::find(std::begin(kFirstWords), std::end(kFirstWords), first) != std::end(kFirstWords)) return false;
  return !name.empty() && std::ranges::all_of(name, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}
std::string nameText(const std::string& name) { return isPlain(name) ? name : text::quoted(name); }
std::string parseName(Cursor& c) {
  if (c.peek('"')) return c.string();
  std::string name(c.until("[](){}>=,@#$\""));
  if (!isPlain(name)) fail("expected a name ", c.here());
  return name;
}

/// Segments or groups as actions name them: by name, or as @index if several have the name.
class Names {
 public:
  template <class Named>
  explicit Names(const std::vector<Named>& all) {
    for (const Named& named : all) add(named.name);
  }
  Names() = default;
  void add(const std::string& name) {
    const auto [at, is_new] = index_.emplace(name, static_cast<int32_t>(names_.size()));
    if (!is_new) at->second = -1;
    names_.push_back(name);
  }
  std::string text(int32_t index) const {
    const std::string& name = names_.at(index);
    return index_.at(name) >= 0 && isPlain(name) ? name : cat("@", index);
  }
  int32_t parse(Cursor& c, const char* what) const {
    if (c.accept('@')) {
      const int32_t index = c.index();
      if (static_cast<size_t>(index) >= names_.size()) fail("there is no ", what, " ", index);
      return index;
    }
    const std::string name = parseName(c);
    const auto at = index_.find(name);
    if (at == index_.end()) fail("there is no ", what, " ", name);
    if (at->second < 0) fail("several have the name ", name, ": write @ and the index");
    return at->second;
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, int32_t> index_;  // -1: several have the name
};

std::string defaultName(const Segment& segment) { return taskName(segment.direction, segment.stage); }

// --- print -----------------------------------------------------------------------------------------------------------
template <class Items, class Text = std::identity>
std::string listText(const Items& items, const Text& text = {}) {
  return cat("[", joined(items, text), "]");
}
std::string slotText(int32_t slot) { return slot < 0 ? std::string("none") : cat("$", slot); }
std::string copyText(const ExternalCopy& copy) {
  return cat(" copy ", listText(copy.slots, slotText),
             copy.dim < 0 ? "" : cat(" dim=", copy.dim, " begin=", copy.begin));
}

// Writes "3@5 spare=12": 3 numbers, after 5 others of the micro-batch.
std::string normalsText(const Normals& n) {
  if (n == Normals{}) return {};
  return cat(" normals=", n.count, "@", n.before, n.spare != 0 ? cat(" spare=", n.spare) : "");
}

std::string headerText(const Executable& exe) {
  return cat("executable ", exe.training ? "training" : "inference", text::numbersText(exe, kHeaderNumbers),
             normalsText(exe.normals), exe.input_part.empty() ? "" : " input_part=" + listText(exe.input_part),
             exe.fetch_ahead ? "" : " fetch_ahead=false", "\n");
}

std::string instructionText(const Executable& exe, const Instruction& i) {
  const auto resultText = [](const std::vector<int32_t>& group) {
    return group.size() == 1 ? slotText(group[0]) : listText(group, slotText);
  };
  std::string out = cat("    ", joined(i.results, resultText), i.results.empty() ? "" : " = ", nameText(i.op), "(",
                        joined(i.args, [](const Arg& arg) { return text::argText(arg, '$'); }), ")");
  if (!i.writes.empty()) out += cat(" writes(", joined(i.writes, slotText), ")");
  if (i.random_draws != -1 || i.random_offset != -1) out += cat(" draws=", i.random_draws, "@", i.random_offset);
  out += normalsText(i.normals);
  if (i.draws_vary) out += " draws_vary";
  if (i.source >= 0) out += cat(" source=", i.source);
  if (i.source >= 0 && static_cast<size_t>(i.source) < exe.sources.size()) {
    const std::string& source = exe.sources[i.source];
    if (isPlain(source)) out += "  # " + source;
  }
  return out + "\n";
}

std::string segmentText(size_t index, const Segment& s) {
  std::string out = cat("  segment ", index, " ", nameText(s.name));
  if (s.name != defaultName(s)) out += cat(" stage=", s.stage, " ", directionName(s.direction));
  if (s.replica != 0) out += cat(" replica=", s.replica);
  return out + "\n";
}

std::string frameText(const Names& groups, const char* what, const FrameUse& f) {
  return cat(" ", what, "(", groups.text(f.group), "[", f.frame, "]", f.writes ? " to write" : "", ")");
}

// --- parse -----------------------------------------------------------------------------------------------------------
class Parser {
 public:
  Executable run(std::string_view text) {
    text::forEachLine(text, line_, mistakes_, [&](Cursor& c) { parseLine(c); });
    if (!opened_ && mistakes_.empty()) mistakes_.emplace_back(std::max(line_, 1), "expected 'executable'");
    for (const auto& [line, slot] : slots_)
      if (static_cast<size_t>(slot) >= exe_.slots.size()) mistakes_.emplace_back(line, cat("there is no slot $", slot));
    text::refuseMistakes(std::move(mistakes_), ErrorCode::E0501, "an executable",
                         "the text form of docs/executable.md");
    return std::move(exe_);
  }

 private:
  void parseLine(Cursor& c) {
    if (c.atEnd()) return;
    if (!opened_) return parseHeader(c);
    const std::string_view first = c.peekWord();
    if (c.peek('$') && !in_segment_)
      parseSlot(c);
    else if (first == "group")
      parseGroup(c);
    else if (first == "external")
      parseExternal(c);
    else if (first == "inputs")
      parseEnds(c);
    else if (first == "source")
      parseSource(c);
    else if (first == "segment")
      parseSegment(c);
    else if (first == "worker")
      parseWorker(c);
    else if (in_worker_)
      parseAction(c);
    else if (in_segment_)
      parseInstruction(c);
    else
      fail("expected a slot, group, external, inputs, source, segment or worker ", c.here());
    c.expectEnd();
  }

  void parseHeader(Cursor& c) {
    if (!c.acceptWord("executable")) fail("expected 'executable' ", c.here());
    opened_ = true;
    exe_.training = c.acceptWord("training");
    if (!exe_.training && !c.acceptWord("inference")) fail("expected training or inference ", c.here());
    while (!c.atEnd()) {
      if (const auto* number = text::acceptNumber(c, kHeaderNumbers))
        exe_.*number->field = c.integer();
      else if (c.acceptKey("normals"))
        parseNormals(c, exe_.normals);
      else if (c.acceptKey("input_part"))
        exe_.input_part = parseIndices(c);
      else if (c.acceptText("fetch_ahead=false"))
        exe_.fetch_ahead = false;
      else
        fail("unknown attribute ", c.here());
    }
  }

  static void parseNormals(Cursor& c, Normals& normals) {
    normals.count = c.integer();
    c.expect('@');
    normals.before = c.integer();
    if (c.acceptKey("spare")) normals.spare = c.integer();
  }
  std::vector<int32_t> parseIndices(Cursor& c) {
    std::vector<int32_t> indices;
    c.expect('[');
    if (c.accept(']')) return indices;
    do indices.push_back(c.index());
    while (c.accept(','));
    c.expect(']');
    return indices;
  }
  std::vector<int32_t> parseSlots(Cursor& c, char close) {
    std::vector<int32_t> slots;
    if (c.accept(close)) return slots;
    do slots.push_back(slot(c));
    while (c.accept(','));
    c.expect(close);
    return slots;
  }
  int32_t slot(Cursor& c) {
    if (c.acceptWord("none")) return -1;
    c.expect('$');
    slots_.emplace_back(line_, c.index(text::kMaxId));
    return slots_.back().second;
  }
  /// Reads -1 or an index.
  static int32_t optionalIndex(Cursor& c) { return c.acceptText("-1") ? -1 : c.index(); }
  static void expectNext(Cursor& c, const char* what, size_t next) {
    c.acceptWord(what);
    const int32_t index = c.index();
    if (static_cast<size_t>(index) != next) fail("expected ", what, " ", next, ", found ", what, " ", index);
  }

  void parseGroup(Cursor& c) {
    Group& group = exe_.groups.emplace_back();
    expectNext(c, "group", exe_.groups.size() - 1);
    group.name = parseName(c);
    groups_.add(group.name);
    group.kind = static_cast<GroupKind>(indexIn(kGroupKinds, c.until(""), "kind of group"));
    c.expectKey("worker");
    group.worker = optionalIndex(c);
    c.expectKey("frames");
    group.frames = c.index();
    c.expectKey("bytes");
    group.frame_bytes = c.integer();
    group.off_chip = c.acceptText("off-chip");
  }

  // $3 %3 f32[2] group=1 at=8
  void parseSlot(Cursor& c) {
    Slot& slot = exe_.slots.emplace_back();
    c.expect('$');
    const int32_t index = c.index();
    if (static_cast<size_t>(index) != exe_.slots.size() - 1)
      fail("expected slot $", exe_.slots.size() - 1, ", found $", index);
    slot.name = parseName(c);
    slot.type = text::parseType(c);
    c.expectKey("group");
    slot.group = optionalIndex(c);
    c.expectKey("at");
    slot.offset_bytes = c.integer();
  }

  void parseExternal(Cursor& c) {
    c.acceptWord("external");
    External& external = exe_.externals.emplace_back();
    external.name = parseName(c);
    external.kind = static_cast<ExternalKind>(indexIn(kExternalKinds, c.until(""), "kind of external"));
    external.slot = slot(c);
    c.expectKey("owner");
    external.owner = optionalIndex(c);
    c.expectKey("initial");
    external.initial = c.real();
    if (c.acceptText("by replica")) external.replica_slots = (c.expect('['), parseSlots(c, ']'));
    while (c.acceptText("copy")) {
      c.expect('[');
      ExternalCopy& copy = external.copies.emplace_back(ExternalCopy{parseSlots(c, ']')});
      if (!c.acceptText("dim=")) continue;
      copy.dim = static_cast<int32_t>(c.integer());
      c.expectKey("begin");
      copy.begin = c.integer();
    }
  }

  void parseEnds(Cursor& c) {
    c.acceptWord("inputs");
    c.expect('[');
    exe_.input_slots = parseSlots(c, ']');
    c.expectText("outputs");
    c.expect('[');
    exe_.output_slots = parseSlots(c, ']');
  }

  void parseSource(Cursor& c) {
    expectNext(c, "source", exe_.sources.size());
    exe_.sources.push_back(c.string());
  }

  void parseSegment(Cursor& c) {
    Segment& segment = exe_.segments.emplace_back();
    in_segment_ = true;
    in_worker_ = false;
    expectNext(c, "segment", exe_.segments.size() - 1);
    segment.name = parseName(c);
    segments_.add(segment.name);
    if (c.acceptKey("stage")) {
      segment.stage = c.index();
      segment.direction = static_cast<Direction>(indexIn(kDirectionNames, c.until(""), "direction"));
    } else {
      readDefaultName(segment);
    }
    if (c.acceptKey("replica")) segment.replica = c.index();
  }

  // Takes direction and stage from a name such as "fwd/2".
  static void readDefaultName(Segment& segment) {
    const size_t slash = segment.name.find('/');
    if (slash == std::string::npos) fail("segment ", segment.name, " needs stage=");
    const int d = indexIn(kTaskNames, std::string_view(segment.name).substr(0, slash), "direction");
    segment.direction = static_cast<Direction>(d);
    Cursor stage(std::string_view(segment.name).substr(slash + 1));
    segment.stage = stage.index();
    stage.expectEnd();
  }

  // $2, [$3, none] = aten::op($0, 1) writes($0) draws=4@0 source=1
  void parseInstruction(Cursor& c) {
    Instruction& i = exe_.segments.back().instructions.emplace_back();
    if (c.peek('$') || c.peek('[') || c.peekWord() == "none") {
      do i.results.push_back(c.accept('[') ? parseSlots(c, ']') : std::vector<int32_t>{slot(c)});
      while (c.accept(','));
      c.expect('=');
    }
    i.op = parseName(c);
    c.expect('(');
    if (!c.accept(')')) {
      do
        i.args.push_back(
            text::parseArg(c, '$', [&](int64_t id) { slots_.emplace_back(line_, static_cast<int32_t>(id)); }));
      while (c.accept(','));
      c.expect(')');
    }
    if (c.acceptText("writes(")) i.writes = parseSlots(c, ')');
    if (c.acceptKey("draws")) {
      i.random_draws = c.integer();
      c.expect('@');
      i.random_offset = c.integer();
    }
    if (c.acceptKey("normals")) parseNormals(c, i.normals);
    i.draws_vary = c.acceptWord("draws_vary");
    if (!c.acceptKey("source")) return;
    i.source = c.index();
    if (static_cast<size_t>(i.source) >= exe_.sources.size()) fail("there is no source ", i.source);
  }

  void parseWorker(Cursor& c) {
    in_segment_ = false;
    in_worker_ = true;
    WorkerProgram& worker = exe_.workers.emplace_back();
    expectNext(c, "worker", exe_.workers.size() - 1);
    c.expectKey("device");
    worker.device = c.index();
    while (const auto* number = text::acceptNumber(c, kWorkerNumbers)) worker.*number->field = c.index();
  }

  // bwd/0 micro_batch=1 wait(fwd/1>=2) fetch(stash/0[1] to write) release(stash/0[0])
  void parseAction(Cursor& c) {
    Action& action = exe_.workers.back().actions.emplace_back();
    action.segment = segments_.parse(c, "segment");
    c.expectKey("micro_batch");
    action.micro_batch = c.index();
    while (c.acceptText("wait(")) {
      Wait& wait = action.waits.emplace_back();
      wait.segment = segments_.parse(c, "segment");
      c.expectText(">=");
      wait.completions = c.integer();
      c.expect(')');
    }
    while (c.acceptText("fetch(")) action.fetches.push_back(parseFrame(c));
    while (c.acceptText("release(")) action.releases.push_back(parseFrame(c));
  }
  FrameUse parseFrame(Cursor& c) {
    FrameUse frame{.group = groups_.parse(c, "group")};
    c.expect('[');
    frame.frame = c.index();
    c.expect(']');
    frame.writes = c.acceptText("to write");
    c.expect(')');
    return frame;
  }

  Executable exe_;
  int line_ = 0;
  bool opened_ = false, in_segment_ = false, in_worker_ = false;
  Names groups_, segments_;
  std::vector<std::pair<int, int32_t>> slots_;  // line, and the slot that it names
  text::Mistakes mistakes_;
};

}  // namespace

std::string print(const Executable& exe) {
  std::string out = headerText(exe);
  for (size_t g = 0; g < exe.groups.size(); ++g) {
    const Group& group = exe.groups[g];
    out += cat("  group ", g, " ", nameText(group.name), " ", kGroupKinds[static_cast<size_t>(group.kind)],
               " worker=", group.worker, " frames=", group.frames, " bytes=", group.frame_bytes,
               group.off_chip ? " off-chip" : "", "\n");
  }
  for (size_t s = 0; s < exe.slots.size(); ++s) {
    const Slot& slot = exe.slots[s];
    out += cat("  $", s, " ", nameText(slot.name), " ", slot.type.str(), " group=", slot.group,
               " at=", slot.offset_bytes, "\n");
  }
  for (const External& e : exe.externals)
    out += cat("  external ", nameText(e.name), " ", kExternalKinds[static_cast<size_t>(e.kind)], " ", slotText(e.slot),
               " owner=", e.owner, " initial=", e.initial,
               e.replica_slots.empty() ? "" : " by replica " + listText(e.replica_slots, slotText),
               joined(e.copies, copyText, ""), "\n");
  out += "  inputs " + listText(exe.input_slots, slotText) + " outputs " + listText(exe.output_slots, slotText) + "\n";
  for (size_t s = 0; s < exe.sources.size(); ++s) out += cat("  source ", s, " ", text::quoted(exe.sources[s]), "\n");
  for (size_t s = 0; s < exe.segments.size(); ++s) {
    out += segmentText(s, exe.segments[s]);
    for (const Instruction& i : exe.segments[s].instructions) out += instructionText(exe, i);
  }
  const Names segments(exe.segments), groups(exe.groups);
  for (size_t w = 0; w < exe.workers.size(); ++w) {
    out +=
        cat("  worker ", w, " device=", exe.workers[w].device, text::numbersText(exe.workers[w], kWorkerNumbers), "\n");
    for (const Action& a : exe.workers[w].actions) {
      out += cat("    ", segments.text(a.segment), " micro_batch=", a.micro_batch);
      for (const Wait& wait : a.waits) out += cat(" wait(", segments.text(wait.segment), ">=", wait.completions, ")");
      for (const FrameUse& f : a.fetches) out += frameText(groups, "fetch", f);
      for (const FrameUse& f : a.releases) out += frameText(groups, "release", f);
      out += '\n';
    }
  }
  return out;
}

Executable parse(std::string_view text) {
  Executable executable = Parser().run(text);
  const std::vector<std::string> findings = verify(executable);
  if (findings.empty()) return executable;
  throwUser(ErrorCode::E0501,
            {.what = cat(findings.size(), findings.size() == 1 ? " mistake" : " mistakes", " in an executable"),
             .found = joined(findings | std::views::take(kShownFindings), {}, "\n"),
             .expected = "the rules of docs/executable.md"});
}

}  // namespace abele::exe
