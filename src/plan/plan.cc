#include "plan/plan.h"
#include "schedule/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/instructions.h"
#include "plan/cost.h"
#include "plan/divided_stages.h"
#include "plan/liveness.h"
#include "plan/packing.h"
#include "plan/predict.h"
#include "schedule/ring.h"

namespace abele::plan {
namespace {

using ir::Direction;

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

class Planner {
 public:
  Planner(const ir::Graph& graph, const PlanOptions& options, RingRule rule = RingRule::kFewestBytes)
      : graph_(graph), options_(options), rule_(rule) {
    num_stages_ = static_cast<int>(graph.stages.size());
    plan_.options = options;
  }

  PlannedStages run() {
    ABELE_CHECK(num_stages_ >= 1, "the graph has no stages: run assign-stages first");
    assignWorkers();
    checkFlow();
    makeSchedule();
    liveness_ = analyseLiveness(graph_, options_, plan_.schedule);
    checkWrittenParameters();
    chooseHomes();
    splitRings();
    packPersistent();
    packStash();
    packTransient();
    chooseFrames();
    return {std::move(plan_), std::move(transient_of_stage_)};
  }

 private:
  // --- workers and schedule ------------------------------------------------------------------------------------------
  void assignWorkers() {
    std::vector<int> devices;
    for (int s = 0; s < num_stages_; ++s) {
      const int device = devices.emplace_back(graph_.stages[s].device);
      if (options_.num_devices > 0 && (device < 0 || device >= options_.num_devices)) rejectDevice(s);
    }
    Workers workers = workersOf(devices);
    plan_.worker_of = std::move(workers.worker_of);
    plan_.device_of = std::move(workers.device_of);
    divided_.emplace(graph_, plan_.worker_of);
  }

  [[noreturn]] void rejectDevice(int stage) const {
    std::string at = graph_.stages[stage].name.empty() ? cat("stage ", stage) : graph_.stages[stage].name;
    for (const ir::Node& node : graph_.nodes) {
      if (node.stage != stage || node.block == ir::kNone) continue;
      const ir::Block& block = graph_.blocks[node.block];
      at += cat(", block ", block.user_id, block.source.empty() ? "" : cat(" (", block.source, ")"));
      break;
    }
    const int device = graph_.stages[stage].device;
    throwUser(ErrorCode::E0402, {.what = cat("stage ", stage, " needs device ", device),
                                 .at = at,
                                 .found = cat("device ", device),
                                 .expected = cat("0 <= device < ", options_.num_devices),
                                 .remedy = cat("use ipu_id below ", options_.num_devices, " for this block, or make ",
                                               device + 1, " devices available")});
  }

  // exe/build makes updates of different stages wait for each other.
  static bool mayFeed(const Task& maker, const Task& reader) {
    return maker == reader || precedes(maker, reader) ||
           (maker.direction == Direction::kUpdate && reader.direction == Direction::kUpdate);
  }

  void checkFlow() const {
    std::vector<int32_t> made_by(graph_.values.size(), -1);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const ir::Node& node = graph_.nodes[i];
      if (node.is_view) continue;
      ABELE_CHECK(node.stage >= 0 && node.stage < num_stages_, "node ", node.id, " ", node.op, " has stage ",
                  node.stage);
      forEachOperand(node, [&](ir::ValueId v) {
        const int32_t maker = made_by[graph_.baseOf(v)];
        if (maker < 0 || mayFeed(taskOf(graph_.nodes[maker]), taskOf(node))) return;
        const ir::Node& from = graph_.nodes[maker];
        throwUser(ErrorCode::E0403,
                  {.what = cat("a value flows from ", taskName(from), " back to ", taskName(node)),
                   .at = cat(node.op, node.source.empty() ? "" : cat(" (", node.source, ")")),
                   .found = cat("made by ", from.op, from.source.empty() ? "" : cat(" (", from.source, ")")),
                   .expected = "forward values flow to later stages, gradients to earlier ones",
                   .remedy = "mark the blocks so that stage numbers never fall along the forward"});
      });
      forEachResult(node, [&](ir::ValueId v) {
        int32_t& maker = made_by[graph_.baseOf(v)];
        if (maker < 0) maker = static_cast<int32_t>(i);
      });
    }
  }

  // If an update works on other memory than the parameter's own, the next micro-batch of its group would not see the
  // writes of forward.
  void checkWrittenParameters() const {
    if (options_.accumulation == 1) return;
    std::vector<const ir::Node*> writer(graph_.values.size(), nullptr);
    for (const ir::Node& node : graph_.nodes) {
      if (isReceive(node))
        writer[node.results.at(0).at(0)] = writer[graph_.baseOf(static_cast<ir::ValueId>(node.args.at(1).i))];
      for (const ir::Write& w : node.writes) {
        const ir::Node* earlier = writer[w.before];
        writer[w.after] = earlier ? earlier : &node;
        if (node.direction != Direction::kUpdate || !earlier || earlier->direction == Direction::kUpdate ||
            hasTrait(earlier->op, kSums) || isExternal(w.before))
          continue;
        throwUser(ErrorCode::E0403,
                  {.what = cat("forward writes into a parameter that is updated after ", options_.accumulation,
                               " micro-batches"),
                   .at = cat(earlier->op, earlier->source.empty() ? "" : cat(" (", earlier->source, ")")),
                   .expected = "a parameter that no earlier stage reads",
                   .remedy = "set the gradient accumulation to 1, or write into a buffer"});
      }
    }
  }

  // Whether it is in memory that outlives the micro-batch.
  bool isExternal(ir::ValueId v) const { return liveness_.buffers[liveness_.buffer_of[graph_.baseOf(v)]].input >= 0; }

  static std::string taskName(const ir::Node& node) {
    static constexpr const char* kName[] = {"the forward", "the backward", "the weight gradients", "the update"};
    return cat(kName[static_cast<int>(node.direction)], " of stage ", node.stage);
  }

  // The stages of the pipeline, which pass shard may have divided. Devices that work on the parts of one stage form a
  // group, and the schedule treats a group as one worker.
  struct Pipeline {
    std::vector<std::vector<int>> parts;  // stages of the graph, by stage of the pipeline
    std::vector<int> group_of;            // by stage of the pipeline

    // Devices work side by side: the one with the most work counts.
    std::vector<schedule::StageCost> costs(const std::vector<schedule::StageCost>& by_part,
                                           const std::vector<int>& worker_of) const {
      std::vector<schedule::StageCost> found;
      for (const std::vector<int>& stages : parts) {
        std::map<int, schedule::StageCost> by_worker;
        schedule::StageCost& most = found.emplace_back(schedule::StageCost{0, 0, 0, 0});
        for (int s : stages) {
          const schedule::StageCost& c = by_part[s];
          schedule::StageCost& sum = by_worker.try_emplace(worker_of[s], schedule::StageCost{0, 0, 0, 0}).first->second;
          most.forward_ns = std::max(most.forward_ns, sum.forward_ns += c.forward_ns);
          most.backward_ns = std::max(most.backward_ns, sum.backward_ns += c.backward_ns);
          most.weight_grad_ns = std::max(most.weight_grad_ns, sum.weight_grad_ns += c.weight_grad_ns);
          most.update_ns = std::max(most.update_ns, sum.update_ns += c.update_ns);
        }
      }
      return found;
    }
  };

  Pipeline pipelineOf() const {
    Pipeline pipeline;
    std::vector<int> group(plan_.device_of.size());  // by worker; groups that share a worker are one
    std::iota(group.begin(), group.end(), 0);
    for (int s = 0; s < num_stages_; ++s) {
      if (s == 0 || !divided_->areParts(s - 1, s)) pipeline.parts.emplace_back();
      pipeline.parts.back().push_back(s);
      const int from = group[workerOf(s)], into = group[workerOf(pipeline.parts.back().front())];
      std::ranges::replace(group, std::max(from, into), std::min(from, into));
    }
    std::map<int, int> number;  // groups in the order of their first worker
    for (int g : group) number.emplace(g, static_cast<int>(number.size()));
    for (const auto& stages : pipeline.parts) pipeline.group_of.push_back(number.at(group[workerOf(stages.front())]));
    return pipeline;
  }

  // Each worker does its parts of an action in the order in which data meets them.
  schedule::Schedule divide(const schedule::Schedule& whole, const Pipeline& pipeline) const {
    schedule::Schedule schedule{.workers = {}, .micro_batches = whole.micro_batches};
    schedule.workers.resize(plan_.device_of.size());
    for (const auto& actions : whole.workers)
      for (const schedule::Action& a : actions) {
        std::vector<int> stages = pipeline.parts[a.stage];
        if (a.direction == Direction::kBackward || a.direction == Direction::kWeightGrad) std::ranges::reverse(stages);
        for (int s : stages) schedule.workers[workerOf(s)].push_back({s, a.direction, a.micro_batch});
      }
    return schedule;
  }

  void makeSchedule() {
    const bool training = graph_.training;
    ABELE_CHECK(training || options_.accumulation == 1, "inference with accumulation ", options_.accumulation);
    ABELE_CHECK(hasTrait(options_.schedule, training ? schedule::kTrains : schedule::kInfers), "the schedule ",
                schedule::scheduleName(options_.schedule), training ? " cannot train" : " needs a training graph");
    const std::vector<schedule::StageCost> costs = options_.costs.empty() ? estimateCosts(graph_) : options_.costs;
    const Pipeline pipeline = pipelineOf();
    const bool is_by_part = costs.size() == graph_.stages.size();
    ABELE_REQUIRE(is_by_part || costs.size() == pipeline.parts.size(), E0404,
                  {.what = cat("costs of ", costs.size(), " stages for a program of ", pipeline.parts.size()),
                   .expected = "one entry for each stage, from costs() of the same model with the same stages",
                   .remedy = "measure the costs again after changing where stages begin"});
    const schedule::Schedule whole = abele::plan::makeSchedule(
        {options_.schedule, graph_.training, options_.device_iterations, options_.accumulation, options_.most_held},
        pipeline.group_of, is_by_part ? pipeline.costs(costs, plan_.worker_of) : costs, options_.hop_ns);
    plan_.schedule = divide(whole, pipeline);
    std::set<Task> used;
    for (const ir::Node& node : graph_.nodes)
      if (!node.is_view) used.insert(taskOf(node));
    for (auto& actions : plan_.schedule.workers) fitToGraph(actions, used);
    const auto findings = schedule::verifySchedule(plan_.schedule, num_stages_, options_.accumulation, training);
    if (findings.empty()) return;
    std::string all;
    for (const std::string& f : findings) all += "\n    " + f;
    throwUser(ErrorCode::E0403, {.what = cat(findings.size(), " findings in the schedule:", all)});
  }

  // Keeps updates only if there is something to update, and weight gradients only if they were split off. Schedules
  // that do not order weight gradients get them directly after the backward.
  void fitToGraph(std::vector<schedule::Action>& actions, const std::set<Task>& used) const {
    std::vector<schedule::Action> fitted;
    for (const schedule::Action& a : actions) {
      const bool may_be_absent = a.direction == Direction::kUpdate || a.direction == Direction::kWeightGrad;
      if (may_be_absent && !used.count({a.stage, a.direction})) continue;
      fitted.push_back(a);
      if (a.direction == Direction::kBackward && !schedule::splitsBackward(options_.schedule) &&
          used.count({a.stage, Direction::kWeightGrad}))
        fitted.push_back({a.stage, Direction::kWeightGrad, a.micro_batch});
    }
    actions = std::move(fitted);
  }

  // --- memory --------------------------------------------------------------------------------------------------------
  static bool isLocal(const Buffer& buffer) {
    return std::ranges::all_of(buffer.touches, [&](const Touch& t) { return t.task == buffer.touches.front().task; });
  }

  void chooseHomes() {
    homes_.resize(liveness_.buffers.size());
    for (size_t i = 0; i < homes_.size(); ++i) {
      const Buffer& buffer = liveness_.buffers[i];
      if (buffer.touches.empty()) continue;  // an input that no task reads
      Placement& home = homes_[i];
      home.stage = divided_->owner_of[homeStage(buffer)];
      if (buffer.input >= 0)
        home.home = graph_.inputs[buffer.input].kind == ir::InputKind::kArgument ? Home::kInput : Home::kPersistent;
      else if (buffer.is_received && !isFromGroup(buffer))
        chooseRing(buffer, home);
      else
        home.home = isLocal(buffer) && !buffer.is_received ? Home::kTransient : Home::kStash;
      chooseLocation(buffer, home);
    }
  }

  // The stage of the first task that touches the buffer in its own memory space.
  static int32_t homeStage(const Buffer& buffer) {
    const auto touch = std::ranges::find_if(buffer.touches, [](const Touch& t) { return !t.from_elsewhere; });
    return (touch == buffer.touches.end() ? buffer.touches.front() : *touch).task.stage;
  }

  // Returns true if another device of the group makes it, in a step before. It comes when the step begins, into the
  // frame.
  bool isFromGroup(const Buffer& received) const {
    const Touch& arrival = received.touches.front();
    const ir::ValueId source = graph_.baseOf(static_cast<ir::ValueId>(graph_.nodes[arrival.position].args.at(1).i));
    const Buffer& made = liveness_.buffers[liveness_.buffer_of[source]];
    const int maker = made.input < 0 ? made.touches.front().task.stage : arrival.task.stage;
    return maker != arrival.task.stage && divided_->areParts(maker, arrival.task.stage) &&
           arrival.task.direction != Direction::kUpdate;
  }

  // All that one task receives arrives at once and ahead of the task, so no two received values share memory.
  void chooseRing(const Buffer& buffer, Placement& home) {
    const Task task = buffer.touches.front().task;
    const auto [it, is_new] = ring_of_.emplace(task, static_cast<int32_t>(plan_.rings.size()));
    if (is_new) plan_.rings.push_back({.task = task, .is_received = true});
    TaskRing& ring = plan_.rings[it->second];
    home.home = Home::kRing;
    home.ring = it->second;
    home.offset_bytes = ring.bytes;
    ring.bytes += alignUp(buffer.bytes);
    for (const Touch& t : buffer.touches) ring_users_[it->second].insert(t.task);
  }

  // Puts a buffer into the off-chip group of its use and stage if the options ask for it.
  void chooseLocation(const Buffer& buffer, Placement& home) {
    TensorUse use{};
    if (!offChipUse(buffer, home.home, use)) return;
    const auto [it, is_new] =
        off_chip_of_.emplace(std::pair(use, home.stage), static_cast<int32_t>(plan_.off_chip.size()));
    home.off_chip = it->second;
    if (is_new) plan_.off_chip.push_back({use, home.stage});
    auto& users = plan_.off_chip[home.off_chip].users;
    for (const Touch& t : buffer.touches) {
      if (isOnLink(t)) continue;  // the transfer fetches it, so the device does not need it
      if (std::ranges::find(users, t.task) == users.end()) users.push_back(t.task);
    }
  }

  // Whether a transfer makes this touch.
  bool isOnLink(const Touch& t) const {
    return t.position >= 0 && t.position != kTaskEnd && isTransfer(graph_.nodes[t.position]);
  }

  // False for buffers that stay on the device.
  bool offChipUse(const Buffer& buffer, Home home, TensorUse& use) const {
    if (home == Home::kStash) {
      use = TensorUse::kActivations;
    } else if (home == Home::kPersistent) {
      switch (graph_.inputs[buffer.input].kind) {
        case ir::InputKind::kParameter:
        case ir::InputKind::kBuffer: use = TensorUse::kWeights; break;
        case ir::InputKind::kAccumulator: use = TensorUse::kAccumulators; break;
        case ir::InputKind::kState: use = TensorUse::kOptimizerState; break;
        default: return false;
      }
    } else {
      return false;
    }
    const Locations& l = options_.locations;
    const TensorLocation* const by_use[] = {&l.weights, &l.optimizer_state, &l.accumulators, &l.activations};
    const TensorLocation& location = *by_use[static_cast<int>(use)];
    return location.off_chip && graph_.values[buffer.members.front()].type.numel() >= location.min_elements;
  }

  void publish(size_t buffer) {
    plan_.placement.resize(graph_.values.size());
    for (ir::ValueId v : liveness_.buffers[buffer].members) plan_.placement[v] = homes_[buffer];
  }

  int workerOf(int stage) const { return plan_.worker_of[stage]; }

  void packPersistent() {
    plan_.placement.resize(graph_.values.size());
    plan_.persistent_bytes.assign(plan_.device_of.size(), 0);
    for (size_t i = 0; i < homes_.size(); ++i) {
      if (homes_[i].home == Home::kPersistent) {
        int64_t& bytes = homes_[i].off_chip >= 0 ? plan_.off_chip[homes_[i].off_chip].bytes
                                                 : plan_.persistent_bytes[workerOf(homes_[i].stage)];
        homes_[i].offset_bytes = bytes;
        bytes += alignUp(liveness_.buffers[i].bytes);
      }
      const Home home = homes_[i].home;
      if (home == Home::kPersistent || home == Home::kInput || home == Home::kRing) publish(i);
    }
  }

  // A moment in the life of a frame. The tasks of a stage use a frame in the order of their directions, and those of
  // its parts step by step. Weight gradients that no schedule orders follow the backward of their step.
  int64_t timeOf(const Touch& t) const { return (stepOf(t.task) << 32) + t.position; }
  // A step of backward ends with the weight gradients that follow it.
  int64_t beginOfStep(const Touch& t) const { return (stepOf(t.task) / 2 * 2 << 32) - 1; }
  int64_t endOfStep(const Touch& t) const { return ((stepOf(t.task) / 2 * 2 + 2) << 32) - 2; }
  int64_t stepOf(const Task& task) const {
    const bool follows = task.direction == Direction::kWeightGrad && !schedule::splitsBackward(options_.schedule);
    const auto direction = static_cast<int64_t>(follows ? Direction::kBackward : task.direction);
    const int step = divided_->step_of[task.stage];
    const int place = task.direction == Direction::kForward ? step : num_stages_ - 1 - step;
    return 2 * (direction * num_stages_ + place) + follows;
  }

  // Each task starts with an empty arena, so a worker needs the size of its largest.
  void packTransient() {
    std::map<Task, std::vector<size_t>> by_task;
    for (size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i].home == Home::kTransient) by_task[liveness_.buffers[i].touches.front().task].push_back(i);
    plan_.transient_bytes.assign(plan_.device_of.size(), 0);
    transient_of_stage_.assign(num_stages_, 0);
    for (const auto& [task, members] : by_task) {
      std::vector<Interval> intervals;
      for (size_t i : members) intervals.push_back(lifeInTask(i));
      int64_t& of_worker = plan_.transient_bytes[workerOf(task.stage)];
      int64_t& of_stage = transient_of_stage_[task.stage];
      of_stage = std::max(of_stage, pack(intervals));
      of_worker = std::max(of_worker, of_stage);
      for (size_t k = 0; k < members.size(); ++k) setOffset(members[k], intervals[k]);
    }
  }

  Interval lifeInTask(size_t i) const {
    Interval item{kForever, std::numeric_limits<int64_t>::min(), liveness_.buffers[i].bytes, 0};
    for (const Touch& t : liveness_.buffers[i].touches) {
      item.begin = std::min(item.begin, timeOf(t));
      item.end = std::max(item.end, timeOf(t));
    }
    return item;
  }

  // Values of a stage that may get frames of their own.
  struct Frames {
    bool is_own = true;  // only this stage and its other parts use them
    std::set<Task> users = {};
    std::vector<size_t> members = {};
    int64_t bytes = 0;  // bytes of one frame
  };

  // A frame is in use from the first task that touches one of its values to the last one. So values that weight
  // gradients or other stages read also keep alive those that only forward and backward need. The same holds for values
  // that only the forward, or only the backward, of a divided stage needs. Each of these kinds gets a ring of its own
  // if that takes fewer bytes.
  void splitRings() {
    enum : size_t { kOwn, kOfForward, kOfBackward, kLate, kShared, kKinds };
    std::vector<std::vector<Frames>> apart(static_cast<size_t>(num_stages_), std::vector<Frames>(kKinds));
    std::vector<bool> moves(apart.size(), false);  // the stage has off-chip values, so its values stay together
    for (size_t i = 0; i < homes_.size(); ++i) {
      if (homes_[i].home != Home::kStash) continue;
      const int32_t stage = homes_[i].stage;
      if (homes_[i].off_chip >= 0) moves[stage] = true;
      bool is_own = true, is_late = false, is_of_one = true;
      const Direction first = liveness_.buffers[i].touches.front().task.direction;
      for (const Touch& t : liveness_.buffers[i].touches) {
        is_own = is_own && divided_->areParts(t.task.stage, stage);
        is_late = is_late || t.task.direction == Direction::kWeightGrad;
        is_of_one = is_of_one && t.task.direction == first;
      }
      const size_t kind = !is_own                        ? kShared
                          : is_late                      ? kLate
                          : !is_of_one                   ? kOwn
                          : first == Direction::kForward ? kOfForward
                                                         : kOfBackward;
      Frames& frames = apart[stage][kind];
      frames.is_own = is_own;
      for (const Touch& t : liveness_.buffers[i].touches) frames.users.insert(t.task);
      frames.members.push_back(i);
    }
    std::optional<schedule::RingLengths> lengths;
    for (int s = 0; s < num_stages_; ++s) {
      std::erase_if(apart[s], [](const Frames& frames) { return frames.members.empty(); });
      if (rule_ == RingRule::kTogether || apart[s].size() < 2 || moves[s]) continue;
      if (!lengths) lengths.emplace(plan_.schedule, num_stages_, options_.accumulation);
      splitRing(s, std::move(apart[s]), *lengths);
    }
  }

  // Values that other stages read get the number of frames that the whole stage has without rings, so no stage waits
  // longer for another. The larger group of values that only this stage uses keeps the stage's own frame.
  void splitRing(int stage, std::vector<Frames> apart, const schedule::RingLengths& lengths) {
    Frames all;
    for (Frames& frames : apart) {
      frames.bytes = packedBytes(stage, frames.members);
      all.users.insert(frames.users.begin(), frames.users.end());
      all.members.insert(all.members.end(), frames.members.begin(), frames.members.end());
    }
    std::ranges::sort(all.members);
    const int64_t most = lengths.of(all.users);
    const auto lengthOf = [&](const Frames& frames) { return frames.is_own ? lengths.of(frames.users) : most; };
    int64_t bytes = 0;
    for (const Frames& frames : apart) bytes += lengthOf(frames) * frames.bytes;
    if (rule_ == RingRule::kFewestBytes && bytes >= most * packedBytes(stage, all.members)) return;
    const auto main = std::ranges::max_element(apart, [](const Frames& a, const Frames& b) {
      return std::pair(a.is_own, a.bytes) < std::pair(b.is_own, b.bytes);
    });
    for (auto frames = apart.begin(); frames != apart.end(); ++frames) {
      if (frames == main) continue;
      const auto ring = static_cast<int32_t>(plan_.rings.size());
      const auto first = std::ranges::find_if(
          frames->users, [&](const Task& user) { return divided_->owner_of[user.stage] == stage; });
      plan_.rings.push_back({.task = *first, .frames = lengthOf(*frames)});
      ring_users_[ring] = frames->users;
      for (size_t i : frames->members) {
        homes_[i].home = Home::kRing;
        homes_[i].ring = ring;
      }
    }
  }

  int64_t packedBytes(int stage, const std::vector<size_t>& members) const {
    std::vector<Interval> intervals;
    for (size_t i : members) intervals.push_back(lifeInFrame(stage, i));
    return pack(intervals);
  }

  void packStash() {
    plan_.stash_bytes.assign(num_stages_, 0);
    std::map<std::tuple<int32_t, int32_t, int>, std::vector<size_t>>
        frames;  // by off-chip group, ring (or -1) and stage
    for (size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i].home == Home::kStash || (homes_[i].home == Home::kRing && !plan_.rings[homes_[i].ring].is_received))
        frames[{homes_[i].off_chip, homes_[i].ring, homes_[i].stage}].push_back(i);
    for (const auto& [place, members] : frames) {
      const auto [off_chip, ring, stage] = place;
      std::vector<Interval> intervals;
      for (size_t i : members) intervals.push_back(lifeInFrame(stage, i));
      const int64_t bytes = pack(intervals);
      int64_t& frame = off_chip >= 0 ? plan_.off_chip[off_chip].bytes
                       : ring >= 0   ? plan_.rings[ring].bytes
                                     : plan_.stash_bytes[stage];
      frame = bytes;
      for (size_t k = 0; k < members.size(); ++k) setOffset(members[k], intervals[k]);
      if (off_chip < 0) fillFrame(members, intervals, bytes);
    }
  }

  // Memory that only the stage's own device touches is free after its last touch, because tasks run in order on one
  // worker. Memory that other devices of the group touch is free after the step: exe/build makes later steps wait for
  // them. Values that other stages of the pipeline or updates read stay until the frame is reused.
  Interval lifeInFrame(int stage, size_t i) const {
    Interval item{kForever, 0, liveness_.buffers[i].bytes, 0};
    for (const Touch& t : liveness_.buffers[i].touches) {
      const bool own = divided_->owner_of[t.task.stage] == stage;
      if (own) item.begin = std::min(item.begin, liveness_.buffers[i].is_received ? beginOfStep(t) : timeOf(t));
      const bool stays = t.task.direction == Direction::kUpdate || !divided_->areParts(t.task.stage, stage);
      item.end = std::max(item.end, stays ? kForever : own && !t.from_elsewhere ? timeOf(t) : endOfStep(t));
    }
    return item;
  }

  // Forward runs before most of the frame is filled, and backward runs after most of it is free. So tasks that use the
  // frame anyway put transient values into its gaps. The frame does not grow.
  void fillFrame(const std::vector<size_t>& members, const std::vector<Interval>& held, int64_t bytes) {
    const Placement frame = homes_[members.front()];
    std::set<Task> users;
    for (size_t i : members)
      for (const Touch& t : liveness_.buffers[i].touches) users.insert(t.task);
    std::vector<size_t> guests;
    std::vector<Interval> lives;
    for (size_t i = 0; i < homes_.size(); ++i) {
      if (homes_[i].home != Home::kTransient || homes_[i].stage != frame.stage) continue;
      const Task& task = liveness_.buffers[i].touches.front().task;
      if (task.direction == Direction::kUpdate || !users.contains(task)) continue;
      guests.push_back(i);
      lives.push_back(lifeInTask(i));
    }
    const std::vector<bool> fits = fillGaps(held, bytes, lives);
    for (size_t k = 0; k < guests.size(); ++k) {
      if (!fits[k]) continue;
      homes_[guests[k]] = frame;
      setOffset(guests[k], lives[k]);
    }
  }

  void setOffset(size_t i, const Interval& life) {
    homes_[i].offset_bytes = life.offset_bytes;
    publish(i);
  }

  void chooseFrames() {
    std::vector<std::set<Task>> users(static_cast<size_t>(num_stages_));
    for (size_t i = 0; i < homes_.size(); ++i)
      if (homes_[i].home == Home::kStash)
        for (const Touch& t : liveness_.buffers[i].touches) users[homes_[i].stage].insert(t.task);
    for (const auto& tasks : users) plan_.users.emplace_back(tasks.begin(), tasks.end());
    const schedule::RingLengths lengths(plan_.schedule, num_stages_, options_.accumulation);
    const int64_t most = std::max<int64_t>(plan_.schedule.micro_batches, 1);
    const auto forAll = [&](int64_t frames) { return std::min(frames * plan_.turns(), most); };
    for (const auto& tasks : plan_.users) plan_.frames.push_back(forAll(lengths.of(tasks)));
    for (size_t r = 0; r < plan_.rings.size(); ++r) {
      TaskRing& ring = plan_.rings[r];
      ring.users.assign(ring_users_[r].begin(), ring_users_[r].end());
      ring.frames = forAll(ring.frames);
      if (!ring.is_received) continue;
      // Values that an update receives are made directly before it, so they cannot arrive ahead.
      const bool comes_ahead = ring.task.direction != Direction::kUpdate;
      ring.frames = std::min(lengths.of(ring.users) + comes_ahead, most);
    }
  }

  const ir::Graph& graph_;
  PlanOptions options_;
  RingRule rule_;
  int num_stages_ = 0;
  Plan plan_;
  Liveness liveness_;
  std::optional<DividedStages> divided_;
  std::vector<Placement> homes_;                                  // by buffer
  std::map<std::pair<TensorUse, int32_t>, int32_t> off_chip_of_;  // use and stage -> off-chip group
  std::map<Task, int32_t> ring_of_;                               // indices into Plan::rings
  std::map<int32_t, std::set<Task>> ring_users_;                  // index into Plan::rings -> tasks
  std::vector<int64_t> transient_of_stage_;
};

}  // namespace

Plan makePlan(const ir::Graph& graph, const PlanOptions& options) { return Planner(graph, options).run().plan; }

PlannedStages planStages(const ir::Graph& graph, const PlanOptions& options, RingRule rule) {
  return Planner(graph, options, rule).run();
}

}  // namespace abele::plan
