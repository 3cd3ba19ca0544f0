// Text form of a plan: print and parse are inverse. Grammar: docs/plan.md.
#include <algorithm>
#include <array>
#include <set>

#include "base/arg_text.h"
#include "base/cat.h"
#include "base/cursor.h"
#include "base/joined.h"
#include "plan/liveness.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

namespace abele::plan {
namespace {

using ir::Direction;
using text::Cursor;
using text::fail;

constexpr std::array<std::string_view, 6> kHomes = {"none", "persistent", "stash", "transient", "input", "ring"};
constexpr int64_t kMaxMicroBatches = 1'000'000'000;

constexpr std::pair<TensorUse, TensorLocation Locations::*> kLocations[] = {
    {TensorUse::kWeights, &Locations::weights},
    {TensorUse::kOptimizerState, &Locations::optimizer_state},
    {TensorUse::kAccumulators, &Locations::accumulators},
    {TensorUse::kActivations, &Locations::activations}};

constexpr text::Number<PlanOptions> kHeaderNumbers[] = {
    {"device_iterations", &PlanOptions::device_iterations, text::kSaidAlways},
    {"accumulation", &PlanOptions::accumulation, text::kSaidAlways},
    {"num_devices", &PlanOptions::num_devices, 0},
    {"hop_ns", &PlanOptions::hop_ns, 0},
    {"alignment", &PlanOptions::alignment, 1},
    {"turns", &PlanOptions::turns, 1}};

std::string tasksText(const std::vector<Task>& tasks) { return cat("[", joined(tasks, taskText), "]"); }

// One more than the last value that has a place.
size_t placedLimit(const Plan& plan) {
  size_t limit = plan.placement.size();
  while (limit > 0 && plan.placement[limit - 1] == Placement{}) --limit;
  return limit;
}

std::string headerText(const Plan& plan) {
  const PlanOptions& o = plan.options;
  std::string out = cat("plan ", schedule::scheduleName(o.schedule), text::numbersText(o, kHeaderNumbers));
  if (plan.schedule.micro_batches != o.device_iterations * o.accumulation)
    out += cat(" micro_batches=", plan.schedule.micro_batches);
  if (!o.most_held.empty()) out += cat(" most_held=[", joined(o.most_held), "]");
  if (!o.locations.fetch_ahead) out += " fetch_ahead=false";
  if (placedLimit(plan) != plan.placement.size()) out += cat(" values=", plan.placement.size());
  return out + "\n";
}

std::string placementText(size_t value, const Placement& p) {
  std::string out = cat("  %", value, " ", kHomes[static_cast<size_t>(p.home)]);
  if (p.stage >= 0) out += cat(" stage=", p.stage);
  if (p.off_chip >= 0) out += cat(" off-chip=", p.off_chip);
  if (p.ring >= 0) out += cat(" ring=", p.ring);
  if (p.home != Home::kInput || p.offset_bytes != 0) out += cat(" at=", p.offset_bytes);
  return out + "\n";
}

class Parser {
 public:
  Plan run(std::string_view text) {
    text::forEachLine(text, line_, mistakes_, [&](Cursor& c) { parseLine(c); });
    if (!opened_ && mistakes_.empty()) mistakes_.emplace_back(std::max(line_, 1), "expected 'plan SCHEDULE'");
    checkReferences();
    setStages();
    setMicroBatches();
    text::refuseMistakes(std::move(mistakes_), ErrorCode::E0202, "a plan", "the text form of docs/plan.md");
    if (plan_.placement.size() < num_values_) plan_.placement.resize(num_values_);
    return std::move(plan_);
  }

 private:
  void parseLine(Cursor& c) {
    if (c.atEnd()) return;
    if (!opened_) return parseHeader(c);
    if (c.acceptText("worker"))
      parseWorker(c);
    else if (c.acceptText("stage"))
      parseStage(c);
    else if (c.acceptText("cost"))
      parseCost(c);
    else if (c.acceptText("locate"))
      parseLocation(c);
    else if (c.acceptText("off-chip"))
      parseOffChip(c);
    else if (c.acceptText("receive"))
      parseRing(c, true);
    else if (c.acceptText("ring"))
      parseRing(c, false);
    else if (c.accept('%'))
      parsePlacement(c);
    else
      fail("expected worker, stage, cost, locate, off-chip, receive, ring or a value ", c.here());
    c.expectEnd();
  }

  void parseHeader(Cursor& c) {
    if (!c.acceptWord("plan")) fail("expected 'plan' ", c.here());
    opened_ = true;
    const std::string name(c.until(""));
    if (!schedule::parseSchedule(name, plan_.options.schedule)) fail("unknown schedule '", name, "'");
    PlanOptions& o = plan_.options;
    while (!c.atEnd()) {
      if (const auto* number = text::acceptNumber(c, kHeaderNumbers))
        o.*number->field = number->unsaid == 0 ? count(c) : positive(c);
      else if (c.acceptKey("micro_batches"))
        plan_.schedule.micro_batches = positive(c);
      else if (c.acceptKey("most_held"))
        o.most_held = (c.expect('['), text::parseIntegers(c, ']'));
      else if (c.acceptText("fetch_ahead=false"))
        o.locations.fetch_ahead = false;
      else if (c.acceptKey("values"))
        num_values_ = static_cast<size_t>(c.index(text::kMaxId));
      else
        fail("unknown attribute ", c.here());
    }
  }

  // Reads "worker 0 device=0 persistent=64 transient=0", and "worker 0: F0 . B0".
  void parseWorker(Cursor& c) {
    const int32_t worker = c.index();
    if (c.accept(':')) return parseActions(c, worker);
    expectNext("worker", worker, plan_.device_of.size());
    c.expectKey("device");
    plan_.device_of.push_back(c.index());
    plan_.persistent_bytes.push_back(countOf(c, "persistent"));
    plan_.transient_bytes.push_back(countOf(c, "transient"));
  }

  void parseStage(Cursor& c) {
    expectNext("stage", c.index(), plan_.worker_of.size());
    c.expectKey("worker");
    plan_.worker_of.push_back(reference(c, workers_));
    plan_.frames.push_back(countOf(c, "frames"));
    plan_.stash_bytes.push_back(countOf(c, "frame"));
    plan_.users.emplace_back();
    if (c.acceptKey("users")) plan_.users.back() = parseTasks(c);
  }

  void parseCost(Cursor& c) {
    expectNext("cost", c.index(), plan_.options.costs.size());
    schedule::StageCost& cost = plan_.options.costs.emplace_back();
    cost = {countOf(c, "forward"), countOf(c, "backward"), countOf(c, "weight_grad"), countOf(c, "update")};
  }

  void parseLocation(Cursor& c) {
    TensorLocation& location = plan_.options.locations.*kLocations[static_cast<size_t>(parseUse(c))].second;
    location.off_chip = c.acceptText("off-chip");
    if (!location.off_chip) c.expectText("on-chip");
    if (c.acceptKey("min_elements")) location.min_elements = c.integer();
  }

  void parseOffChip(Cursor& c) {
    expectNext("off-chip", c.index(), plan_.off_chip.size());
    OffChipGroup& group = plan_.off_chip.emplace_back();
    c.expectKey("stage");
    group.stage = reference(c, stages_);
    group.use = parseUse(c);
    group.bytes = countOf(c, "bytes");
    if (c.acceptKey("users")) group.users = parseTasks(c);
  }

  void parseRing(Cursor& c, bool is_received) {
    expectNext("ring", c.index(), plan_.rings.size());
    TaskRing& ring = plan_.rings.emplace_back();
    ring.is_received = is_received;
    c.expectKey("task");
    ring.task.direction = parseLetter(c);
    ring.task.stage = reference(c, stages_);
    ring.frames = countOf(c, "frames");
    ring.bytes = countOf(c, "frame");
    if (c.acceptKey("users")) ring.users = parseTasks(c);
  }

  void parsePlacement(Cursor& c) {
    const auto value = static_cast<size_t>(c.index(text::kMaxId));
    if (value < plan_.placement.size() && plan_.placement[value] != Placement{}) fail("%", value, " is placed twice");
    const std::string_view home = c.until("");
    const auto* at = std::ranges::find(kHomes, home);
    if (at == kHomes.end()) fail("unknown place '", home, "' of a value");
    Placement p{.home = static_cast<Home>(at - kHomes.begin())};
    while (!c.atEnd()) {
      if (c.acceptKey("stage"))
        p.stage = reference(c, stages_);
      else if (c.acceptKey("off-chip"))
        p.off_chip = reference(c, groups_);
      else if (c.acceptKey("ring"))
        p.ring = reference(c, rings_);
      else if (c.acceptKey("at"))
        p.offset_bytes = count(c);
      else
        fail("expected stage=, off-chip=, ring= or at= ", c.here());
    }
    if ((p.home == Home::kRing) != (p.ring >= 0)) fail("%", value, ": a value names a ring exactly if it is in one");
    const bool needs_stage = p.home != Home::kNone && p.home != Home::kInput;
    if (needs_stage && p.stage < 0) fail("%", value, " needs a stage");
    if (plan_.placement.size() <= value) plan_.placement.resize(value + 1);
    plan_.placement[value] = p;
  }

  // F0 if the worker has one stage, F1.0 if it has several. A dot alone is an idle slot.
  void parseActions(Cursor& c, int32_t worker) {
    expectNext("worker", worker, plan_.schedule.workers.size());
    std::vector<schedule::Action>& actions = plan_.schedule.workers.emplace_back();
    action_lines_.push_back(line_);
    while (!c.atEnd()) {
      if (c.accept('.')) continue;
      schedule::Action action{.stage = ir::kNone, .direction = parseLetter(c)};
      action.micro_batch = c.index();
      if (c.acceptAdjacent('.')) {
        action.stage = action.micro_batch;
        stages_.emplace_back(line_, action.stage);
        action.micro_batch = c.index();
      }
      c.acceptAdjacent('?');
      actions.push_back(action);
    }
  }

  Direction parseLetter(Cursor& c) {
    for (size_t d = 0; d < kTaskLetters.size(); ++d)
      if (c.accept(kTaskLetters[d])) return static_cast<Direction>(d);
    fail("expected an action or task (F, B, W or U) ", c.here());
  }

  std::vector<Task> parseTasks(Cursor& c) {
    std::vector<Task> tasks;
    c.expect('[');
    if (c.accept(']')) return tasks;
    do {
      const Direction direction = parseLetter(c);
      tasks.push_back({reference(c, stages_), direction});
    } while (c.accept(','));
    c.expect(']');
    return tasks;
  }

  TensorUse parseUse(Cursor& c) {
    const std::string_view name = c.until("");
    for (const auto& [use, location] : kLocations)
      if (name == tensorUseName(use)) return use;
    fail("unknown use of tensors '", name, "'");
  }

  int64_t countOf(Cursor& c, const char* key) {
    c.expectKey(key);
    return count(c);
  }
  int64_t count(Cursor& c) {
    const std::string where = c.here();
    const int64_t number = c.integer();
    if (number < 0) fail("negative number ", where);
    return number;
  }
  int64_t positive(Cursor& c) {
    const std::string where = c.here();
    const int64_t number = c.integer();
    if (number < 1 || number > kMaxMicroBatches) fail("number out of range ", where);
    return number;
  }
  static void expectNext(const char* what, int32_t index, size_t next) {
    if (static_cast<size_t>(index) != next) fail("expected ", what, " ", next, ", found ", what, " ", index);
  }

  using References = std::vector<std::pair<int, int32_t>>;  // line, index
  int32_t reference(Cursor& c, References& references) {
    references.emplace_back(line_, c.index());
    return references.back().second;
  }

  void checkReferences() {
    const auto check = [&](const References& references, const char* what, size_t size) {
      for (const auto& [line, index] : references)
        if (static_cast<size_t>(index) >= size) mistakes_.emplace_back(line, cat("there is no ", what, " ", index));
    };
    check(workers_, "worker", plan_.device_of.size());
    check(stages_, "stage", plan_.worker_of.size());
    check(groups_, "off-chip group", plan_.off_chip.size());
    check(rings_, "ring", plan_.rings.size());
  }

  // Sets the stage of actions whose stage is not written: it is their worker's only stage.
  void setStages() {
    if (!mistakes_.empty()) return;
    for (size_t w = 0; w < plan_.schedule.workers.size(); ++w) {
      const auto of_worker = std::ranges::count(plan_.worker_of, static_cast<int>(w));
      const auto stage = std::ranges::find(plan_.worker_of, static_cast<int>(w));
      for (schedule::Action& action : plan_.schedule.workers[w]) {
        if (action.stage != ir::kNone) continue;
        if (of_worker != 1) {
          mistakes_.emplace_back(action_lines_[w],
                                 cat("worker ", w, " has ", of_worker, " stages: name them, as in F1.0"));
          break;
        }
        action.stage = static_cast<int32_t>(stage - plan_.worker_of.begin());
      }
    }
  }

  // Charts and checks have an entry for every stage and micro-batch, so the text must contain each of them.
  void setMicroBatches() {
    int64_t& micro_batches = plan_.schedule.micro_batches;
    if (micro_batches == 0) micro_batches = plan_.options.device_iterations * plan_.options.accumulation;
    int64_t num_actions = 0;
    for (size_t w = 0; w < plan_.schedule.workers.size(); ++w)
      for (const schedule::Action& action : plan_.schedule.workers[w]) {
        ++num_actions;
        if (action.micro_batch < micro_batches) continue;
        mistakes_.emplace_back(action_lines_[w],
                               cat("micro-batch ", action.micro_batch, " of ", micro_batches, " micro-batches"));
        break;
      }
    const auto num_stages = static_cast<int64_t>(std::max<size_t>(plan_.worker_of.size(), 1));
    if (mistakes_.empty() && num_actions / num_stages < micro_batches)
      mistakes_.emplace_back(line_, cat(num_actions, " actions, expected at least one for each of ", num_stages,
                                        " stages and ", micro_batches, " micro-batches"));
  }

  Plan plan_;
  int line_ = 0;
  bool opened_ = false;
  size_t num_values_ = 0;
  References workers_, stages_, groups_, rings_;
  std::vector<int> action_lines_;  // by worker
  text::Mistakes mistakes_;
};

}  // namespace

std::string taskText(const Task& task) { return cat(kTaskLetters[static_cast<size_t>(task.direction)], task.stage); }

std::string print(const Plan& plan) {
  std::string out = headerText(plan);
  for (size_t s = 0; s < plan.options.costs.size(); ++s) {
    const schedule::StageCost& cost = plan.options.costs[s];
    out += cat("  cost ", s, " forward=", cost.forward_ns, " backward=", cost.backward_ns,
               " weight_grad=", cost.weight_grad_ns, " update=", cost.update_ns, "\n");
  }
  for (const auto& [use, member] : kLocations) {
    const TensorLocation& location = plan.options.locations.*member;
    if (location == TensorLocation{}) continue;
    out += cat("  locate ", tensorUseName(use), location.off_chip ? " off-chip" : " on-chip",
               " min_elements=", location.min_elements, "\n");
  }
  for (size_t w = 0; w < plan.device_of.size(); ++w)
    out += cat("  worker ", w, " device=", plan.device_of[w], " persistent=", plan.persistent_bytes[w],
               " transient=", plan.transient_bytes[w], "\n");
  for (size_t s = 0; s < plan.worker_of.size(); ++s)
    out += cat("  stage ", s, " worker=", plan.worker_of[s], " frames=", plan.frames[s], " frame=", plan.stash_bytes[s],
               " users=", tasksText(plan.users[s]), "\n");
  for (size_t g = 0; g < plan.off_chip.size(); ++g) {
    const OffChipGroup& group = plan.off_chip[g];
    out += cat("  off-chip ", g, " stage=", group.stage, " ", tensorUseName(group.use), " bytes=", group.bytes,
               " users=", tasksText(group.users), "\n");
  }
  for (size_t r = 0; r < plan.rings.size(); ++r) {
    const TaskRing& ring = plan.rings[r];
    out += cat(ring.is_received ? "  receive " : "  ring ", r, " task=", taskText(ring.task), " frames=", ring.frames,
               " frame=", ring.bytes, " users=", tasksText(ring.users), "\n");
  }
  for (size_t v = 0; v < plan.placement.size(); ++v)
    if (plan.placement[v] != Placement{}) out += placementText(v, plan.placement[v]);
  return out + schedule::printSchedule(plan.schedule);
}

Plan parse(std::string_view text) { return Parser().run(text); }

std::vector<std::string> verify(const Plan& plan, const ir::Graph& graph) {
  std::vector<std::string> findings;
  const auto found = [&](const auto&... parts) { findings.push_back(cat(parts...)); };
  if (plan.worker_of.size() != graph.stages.size())
    found("the plan has ", plan.worker_of.size(), " stages, the graph ", graph.stages.size());
  if (plan.placement.size() != graph.values.size())
    found("the plan is of ", plan.placement.size(), " values, the graph has ", graph.values.size());
  if (plan.schedule.workers.size() != plan.device_of.size())
    found("the schedule has ", plan.schedule.workers.size(), " workers, the plan ", plan.device_of.size());
  for (size_t s = 0; s < plan.frames.size(); ++s)
    if (plan.frames[s] < 1) found("stage ", s, " has a ring of ", plan.frames[s], " frames");
  for (size_t r = 0; r < plan.rings.size(); ++r)
    if (plan.rings[r].frames < 1) found("ring ", r, " has ", plan.rings[r].frames, " frames");
  if (!findings.empty()) return findings;
  findings = schedule::verifySchedule(plan.schedule, static_cast<int>(plan.worker_of.size()), plan.options.accumulation,
                                      graph.training);
  for (size_t w = 0; w < plan.schedule.workers.size(); ++w)
    for (const schedule::Action& a : plan.schedule.workers[w])
      if (plan.worker_of[a.stage] != static_cast<int>(w))
        found("worker ", w, " runs stage ", a.stage, " of worker ", plan.worker_of[a.stage]);
  std::set<ir::ValueId> read;
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view) continue;
    forEachOperand(node, [&](ir::ValueId v) { read.insert(graph.baseOf(v)); });
  }
  for (const ir::Output& output : graph.outputs)
    if (output.kind == ir::OutputKind::kResult) read.insert(graph.baseOf(output.value));
  for (ir::ValueId v : read)
    if (plan.placement[v].home == Home::kNone) found("%", v, " has no place");
  for (const ir::Node& node : graph.nodes)
    if (isReceive(node)) {
      const Home home = plan.placement[node.results.at(0).at(0)].home;
      if (home != Home::kRing && home != Home::kStash)
        found("%", node.results[0][0], " comes from a transfer but is not in a ring");
    }
  return findings;
}

}  // namespace abele::plan
