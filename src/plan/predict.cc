#include "plan/predict.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "plan/liveness.h"

namespace abele::plan {
namespace {

void requireOptions(const PredictOptions& o) {
  ABELE_REQUIRE(o.device_iterations >= 1 && o.accumulation >= 1, E0404,
                {.what = cat(o.device_iterations, " device iterations of ", o.accumulation, " micro-batches"),
                 .expected = "1 or more of both"});
  const schedule::ScheduleTrait needed = o.training ? schedule::kTrains : schedule::kInfers;
  ABELE_REQUIRE(hasTrait(o.schedule, needed), E0404,
                {.what = cat("the schedule ", schedule::scheduleName(o.schedule), " does not support ",
                             o.training ? "training" : "inference"),
                 .expected = oneOf(schedule::scheduleNames(needed))});
  ABELE_REQUIRE(o.training || o.accumulation == 1, E0404,
                {.what = "inference with gradient accumulation", .expected = "device iterations"});
}

int64_t timeOf(const schedule::StageCost& c) { return c.forward_ns + c.backward_ns + c.weight_grad_ns; }

// The ends of the parts if none of them takes longer than `limit`; empty if that needs more parts.
std::vector<size_t> cutsWithin(const std::vector<schedule::StageCost>& costs, size_t parts, int64_t limit) {
  std::vector<size_t> ends;
  int64_t time = 0;
  size_t size = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    const bool must_cut = costs.size() - i <= parts - ends.size() - 1;  // each part that is left needs one entry
    if (size > 0 && (must_cut || time + timeOf(costs[i]) > limit)) {
      ends.push_back(i);
      time = 0;
      size = 0;
      if (ends.size() == parts) return {};
    }
    time += timeOf(costs[i]);
    ++size;
    if (time > limit) return {};
  }
  ends.push_back(costs.size());
  return ends;
}

std::vector<Task> joinUsers(const std::vector<Task>& users, const std::vector<int32_t>& part_of) {
  std::vector<Task> joined;
  for (const Task& user : users) {
    const Task task{part_of[user.stage], user.direction};
    if (std::ranges::find(joined, task) == joined.end()) joined.push_back(task);
  }
  return joined;
}

void addRing(std::vector<schedule::StageRing>& rings, int64_t bytes, std::vector<Task> users) {
  const auto same = std::ranges::find_if(rings, [&](const schedule::StageRing& ring) {
    return std::is_permutation(ring.users.begin(), ring.users.end(), users.begin(), users.end());
  });
  if (same == rings.end())
    rings.push_back({bytes, std::move(users)});
  else
    same->bytes += bytes;
}

// Adds up the memory of the stages in each part, and renames their tasks to the part's.
std::vector<schedule::StageMemory> joinMemory(const std::vector<schedule::StageMemory>& stages,
                                              const std::vector<int32_t>& part_of) {
  if (stages.empty()) return {};
  std::vector<schedule::StageMemory> parts(static_cast<size_t>(part_of.back()) + 1);
  std::vector<bool> has_rings(parts.size(), false);
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto p = static_cast<size_t>(part_of[s]);
    schedule::StageMemory& part = parts[p];
    part.persistent_bytes += stages[s].persistent_bytes;
    part.stash_bytes += stages[s].stash_bytes;
    part.transient_bytes = std::max(part.transient_bytes, stages[s].transient_bytes);
    for (const Task& user : joinUsers(stages[s].users, part_of))
      if (std::ranges::find(part.users, user) == part.users.end()) part.users.push_back(user);
    if (!stages[s].rings.empty()) {
      has_rings[p] = true;
      part.apart_transient_bytes = std::max(part.apart_transient_bytes, stages[s].apart_transient_bytes);
      for (const schedule::StageRing& ring : stages[s].rings)
        addRing(part.rings, ring.bytes, joinUsers(ring.users, part_of));
    } else if (!stages[s].users.empty()) {
      part.apart_transient_bytes = std::max(part.apart_transient_bytes, stages[s].transient_bytes);
      addRing(part.rings, stages[s].stash_bytes, joinUsers(stages[s].users, part_of));
    }
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    if (has_rings[p]) continue;
    parts[p].rings.clear();
    parts[p].apart_transient_bytes = 0;
  }
  return parts;
}

// By stage.
std::vector<int> devicesOf(const Chain& chain) {
  std::vector<int> devices = chain.device_of;
  for (size_t s = devices.size(); s < chain.costs.stages.size(); ++s) devices.push_back(static_cast<int>(s));
  return devices;
}

// A value that arrives in a stage stays as long as the values that its own forward keeps.
void addReceived(std::vector<schedule::StageMemory>& memory, const std::vector<schedule::Transfer>& transfers) {
  if (memory.empty()) return;
  for (const schedule::Transfer& t : transfers) {
    if (t.is_placed) continue;
    schedule::StageMemory& stage = memory[t.to.stage];
    stage.stash_bytes += t.bytes;
    if (!stage.rings.empty()) stage.rings.front().bytes += t.bytes;
  }
}

void requireHandovers(const Chain& chain) {
  const auto n = static_cast<int32_t>(chain.costs.stages.size());
  for (const schedule::Handover& h : chain.handovers) {
    const bool exist = std::min(h.from.stage, h.to.stage) >= 0 && std::max(h.from.stage, h.to.stage) < n;
    const bool may_be = exist && h.bytes >= 0 && h.from.stage != h.to.stage &&
                        h.to.direction != ir::Direction::kUpdate && precedes(h.from, h.to);
    ABELE_REQUIRE(may_be, E0404,
                  {.what = cat("a handover of ", h.bytes, " bytes from stage ", h.from.stage, " to ", h.to.stage),
                   .expected = cat("0 or more bytes between two of the stages 0 to ", n - 1,
                                   ", to later ones in forward, to earlier ones in backward")});
  }
  bool good = chain.replication.replicas >= 1 && chain.replication.replicas <= 1'000'000;
  good = good && (chain.gradient_bytes.empty() || chain.gradient_bytes.size() == static_cast<size_t>(n));
  for (int64_t bytes : chain.gradient_bytes) good = good && bytes >= 0;
  ABELE_REQUIRE(good, E0404,
                {.what = cat(chain.replication.replicas, " replicas, and sizes of gradients for ",
                             chain.gradient_bytes.size(), " stages"),
                 .expected = cat("1 or more replicas; 0 or more bytes for all ", n, " stages or for none")});
}

// Drops handovers inside a part.
std::vector<schedule::Handover> joinHandovers(const std::vector<schedule::Handover>& handovers,
                                              const std::vector<int32_t>& part_of) {
  std::vector<schedule::Handover> joined;
  for (schedule::Handover h : handovers) {
    h.from.stage = part_of[h.from.stage];
    h.to.stage = part_of[h.to.stage];
    if (h.from.stage == h.to.stage) continue;
    const bool again = !joined.empty() && joined.back().from == h.from && joined.back().to == h.to &&
                       joined.back().is_placed == h.is_placed;
    if (again)
      joined.back().bytes += h.bytes;
    else
      joined.push_back(h);
  }
  return joined;
}

}  // namespace

void requireCosts(const Chain& chain) {
  const schedule::CostModel& costs = chain.costs;
  ABELE_REQUIRE(!costs.stages.empty(), E0404, {.what = "costs without stages", .expected = "one stage or more"});
  const size_t n = costs.stages.size();
  bool bad = costs.hop_ns < 0 || costs.action_ns < 0 || costs.host_ns < 0 || costs.cores < 0;
  bool fits = chain.device_of.empty() || chain.device_of.size() == n;
  std::vector<Task> users;
  for (const schedule::StageCost& c : costs.stages)
    bad |= c.forward_ns < 0 || c.backward_ns < 0 || c.weight_grad_ns < 0 || c.update_ns < 0;
  for (const auto* memory : {&costs.memory, &chain.split_memory, &chain.sharded_memory}) {
    fits = fits && (memory->empty() || memory->size() == n);
    for (const schedule::StageMemory& m : *memory) {
      bad |= m.persistent_bytes < 0 || m.stash_bytes < 0 || m.transient_bytes < 0 || m.apart_transient_bytes < 0;
      users.insert(users.end(), m.users.begin(), m.users.end());
      for (const schedule::StageRing& ring : m.rings) {
        bad |= ring.bytes < 0;
        users.insert(users.end(), ring.users.begin(), ring.users.end());
      }
    }
  }
  ABELE_REQUIRE(!bad, E0404, {.what = "a negative time or size", .expected = "0 or more"});
  ABELE_REQUIRE(fits, E0404, {.what = cat("figures for only some of ", n, " stages"), .expected = "all or none"});
  for (const Task& user : users)
    ABELE_REQUIRE(user.stage >= 0 && static_cast<size_t>(user.stage) < n, E0404,
                  {.what = cat("a user in stage ", user.stage), .expected = cat("stages 0 to ", n - 1)});
  requireHandovers(chain);
  for (int device : chain.device_of)
    ABELE_REQUIRE(device >= 0, E0404, {.what = cat("device ", device), .expected = "0 or more"});
}

schedule::CostModel pricedCosts(const Chain& chain) {
  schedule::CostModel costs = chain.costs;
  if (!chain.machine.hasLinks()) return costs;
  const std::vector<int> devices = devicesOf(chain);
  costs.transfers = schedule::transfersOf(chain.handovers, devices, chain.machine, chain.replication);
  costs.reduce_ns = schedule::ringTimes(chain.gradient_bytes, devices, chain.machine, chain.replication);
  costs.reduces_early = chain.replication.is_early;
  addReceived(costs.memory, costs.transfers);
  return costs;
}

int64_t Prediction::peakBytes() const {
  int64_t peak = 0;
  for (const schedule::WorkerTimes& w : run.workers) peak = std::max(peak, w.peak_bytes);
  return peak;
}

schedule::Schedule makeSchedule(const PredictOptions& o, const std::vector<int>& worker_of,
                                const std::vector<schedule::StageCost>& costs, int64_t hop_ns) {
  return schedule::scheduleRow(o.schedule)
      .make({.worker_of = worker_of,
             .device_iterations = o.device_iterations,
             .accumulation = o.accumulation,
             .training = o.training,
             .costs = costs,
             .hop_ns = hop_ns,
             .most_held = o.most_held});
}

std::vector<schedule::StageCost> wholeBackward(std::vector<schedule::StageCost> costs) {
  for (schedule::StageCost& c : costs) c.backward_ns += std::exchange(c.weight_grad_ns, 0);
  return costs;
}

Workers workersOf(const std::vector<int>& devices) {
  Workers workers;
  for (const int device : devices) {
    const auto own = std::ranges::find(workers.device_of, device);
    workers.worker_of.push_back(static_cast<int>(own - workers.device_of.begin()));
    if (own == workers.device_of.end()) workers.device_of.push_back(device);
  }
  return workers;
}

void dropFreeWeightGradients(schedule::Schedule& schedule, const std::vector<schedule::StageCost>& costs) {
  for (auto& actions : schedule.workers)
    std::erase_if(actions, [&](const schedule::Action& a) {
      return a.direction == ir::Direction::kWeightGrad && costs[a.stage].weight_grad_ns == 0;
    });
}

Prediction predict(const Chain& chain, const PredictOptions& options) {
  requireCosts(chain);
  requireOptions(options);
  Prediction prediction{.options = options, .num_stages = static_cast<int>(chain.costs.stages.size())};
  Workers workers = workersOf(devicesOf(chain));
  prediction.device_of = std::move(workers.device_of);
  schedule::CostModel costs = pricedCosts(chain);
  if (!schedule::splitsBackward(options.schedule)) costs.stages = wholeBackward(std::move(costs.stages));
  const auto take = [&](const std::vector<schedule::StageMemory>& memory) {
    if (memory.empty()) return;
    costs.memory = memory;
    addReceived(costs.memory, costs.transfers);
  };
  if (schedule::splitsBackward(options.schedule)) take(chain.split_memory);
  if (options.schedule == schedule::ScheduleKind::kSharded) take(chain.sharded_memory);
  // The search for an order knows a single time between devices, so it gets the longest.
  int64_t hop_ns = costs.hop_ns;
  for (const schedule::Transfer& transfer : costs.transfers) hop_ns = std::max(hop_ns, transfer.time_ns);
  prediction.schedule = makeSchedule(options, workers.worker_of, costs.stages, hop_ns);
  prediction.replication = chain.replication;
  prediction.transfers = costs.transfers;
  if (options.training) prediction.reduce_ns = costs.reduce_ns;
  dropFreeWeightGradients(prediction.schedule, costs.stages);
  prediction.run = schedule::simulate(prediction.schedule, prediction.num_stages, options.accumulation, costs);
  ABELE_CHECK(prediction.run.complete, "the schedule ", schedule::scheduleName(options.schedule), " does not end");
  for (size_t w = 0; w < prediction.device_of.size(); ++w)
    prediction.memory.push_back(schedule::memoryOverTime(prediction.run, costs, w));
  return prediction;
}

Chain partition(const Chain& chain, int parts) {
  requireCosts(chain);
  const std::vector<schedule::StageCost>& costs = chain.costs.stages;
  ABELE_REQUIRE(parts >= 1 && static_cast<size_t>(parts) <= costs.size(), E0404,
                {.what = cat("a chain of ", costs.size(), " stages in ", parts, " parts"),
                 .expected = cat("1 to ", costs.size(), " parts"),
                 .remedy = "pass the costs of smaller pieces, or use \"repeat\" for equal ones"});
  int64_t low = 0, high = 0;
  for (const schedule::StageCost& c : costs) {
    low = std::max(low, timeOf(c));
    high += timeOf(c);
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (cutsWithin(costs, static_cast<size_t>(parts), middle).empty())
      low = middle + 1;
    else
      high = middle;
  }
  Chain joined;
  joined.costs = chain.costs;
  joined.costs.stages.clear();
  std::vector<int32_t> part_of;  // by stage
  size_t begin = 0;
  for (size_t end : cutsWithin(costs, static_cast<size_t>(parts), low)) {
    schedule::StageCost cost{0, 0, 0, 0};
    part_of.insert(part_of.end(), end - begin, static_cast<int32_t>(joined.costs.stages.size()));
    for (size_t i = begin; i < end; ++i) {
      cost.forward_ns += costs[i].forward_ns;
      cost.backward_ns += costs[i].backward_ns;
      cost.weight_grad_ns += costs[i].weight_grad_ns;
      cost.update_ns += costs[i].update_ns;
    }
    joined.costs.stages.push_back(cost);
    begin = end;
  }
  joined.machine = chain.machine;
  joined.replication = chain.replication;
  joined.handovers = joinHandovers(chain.handovers, part_of);
  if (!chain.gradient_bytes.empty()) joined.gradient_bytes.resize(joined.costs.stages.size(), 0);
  for (size_t s = 0; s < chain.gradient_bytes.size(); ++s) joined.gradient_bytes[part_of[s]] += chain.gradient_bytes[s];
  joined.costs.memory = joinMemory(chain.costs.memory, part_of);
  joined.split_memory = joinMemory(chain.split_memory, part_of);
  joined.sharded_memory = joinMemory(chain.sharded_memory, part_of);
  return joined;
}

Chain deal(const Chain& chain, int devices, int chunks) {
  ABELE_REQUIRE(devices >= 1 && chunks >= 1, E0404,
                {.what = cat(devices, " devices of ", chunks, " stages"), .expected = "1 or more of both"});
  Chain dealt = partition(chain, devices * chunks);
  for (int s = 0; s < devices * chunks; ++s) dealt.device_of.push_back(s % devices);
  return dealt;
}

}  // namespace abele::plan
