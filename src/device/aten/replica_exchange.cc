#include "device/aten/replica_exchange.h"

#include <algorithm>
#include <functional>

#include <ATen/core/Tensor.h>

#include "base/error.h"

namespace abele::device {
namespace {

std::ptrdiff_t countExchanges(const exe::Executable& executable, const exe::WorkerProgram& worker) {
  std::ptrdiff_t count = 0;
  for (const exe::Action& action : worker.actions)
    count += std::ranges::count_if(executable.segments[action.segment].instructions, ReplicaExchange::isExchange);
  return count;
}

}  // namespace

bool ReplicaExchange::isExchange(const exe::Instruction& instruction) {
  return instruction.op == "abele_op::all_to_all";
}

bool ReplicaExchange::isNeeded(const exe::Executable& executable) {
  return executable.replicas > 1 && std::ranges::any_of(executable.segments, [](const exe::Segment& segment) {
           return std::ranges::any_of(segment.instructions, isExchange);
         });
}

ReplicaExchange::ReplicaExchange(const exe::Executable& executable) : executable_(executable) {
  if (!isNeeded(executable)) return;
  ABELE_REQUIRE(executable.processes == 1 && executable.stage_processes == 1, E0711,
                {.what = "an exchange of values between replicas of several processes",
                 .remedy = "keep all replicas in one process"});
  const auto replicas = static_cast<std::size_t>(executable.replicas);
  std::vector<std::vector<std::ptrdiff_t>> counts(replicas);  // by replica and room
  for (const exe::WorkerProgram& worker : executable.workers) {
    auto& of_replica = counts[worker.replica];
    room_of_worker_.push_back(of_replica.size());
    of_replica.push_back(countExchanges(executable, worker));
  }
  ABELE_REQUIRE(
      std::ranges::adjacent_find(counts, std::not_equal_to()) == counts.end(), E0501,
      {.what = "replicas exchange values a different number of times", .remedy = "compile the program again"});
  for (std::size_t i = 0; i < counts[0].size(); ++i) {
    rooms_.push_back(std::make_unique<Room>());
    rooms_.back()->given.resize(replicas);
  }
}

std::unique_ptr<Call> ReplicaExchange::makeCall(const exe::Instruction& instruction, const SlotTable& slots,
                                                int32_t worker) {
  return callOf([&room = *rooms_.at(room_of_worker_.at(worker)),
                 replica = static_cast<std::size_t>(executable_.workers[worker].replica),
                 from = slots.ref(static_cast<int32_t>(instruction.args.at(0).i)),
                 to = slots.ref(instruction.results.at(0).at(0))](CallState& state) {
    room.exchange(replica, from.at(state.frame_of_group), to.at(state.frame_of_group));
  });
}

void ReplicaExchange::begin() {
  for (const std::unique_ptr<Room>& room : rooms_) {
    const std::lock_guard lock(room->mu);
    room->arrived = room->left = 0;
    room->is_aborted = false;
  }
}

void ReplicaExchange::interrupt() {
  for (const std::unique_ptr<Room>& room : rooms_) {
    const std::lock_guard lock(room->mu);
    room->is_aborted = true;
    room->changed.notify_all();
  }
}

void ReplicaExchange::Room::exchange(std::size_t replica, const at::Tensor& from, const at::Tensor& to) {
  std::unique_lock lock(mu);
  const auto wait = [&](auto holds) {
    changed.wait(lock, [&] { return is_aborted || holds(); });
    if (is_aborted) throwUser(ErrorCode::E0602, {.what = "an exchange between replicas was interrupted"});
  };
  given[replica] = &from;
  if (++arrived == given.size()) changed.notify_all();
  wait([&] { return arrived == given.size(); });
  lock.unlock();
  for (std::size_t r = 0; r < given.size(); ++r)
    to.select(0, static_cast<int64_t>(r)).copy_(given[r]->select(0, static_cast<int64_t>(replica)));
  lock.lock();
  // A worker waits here until all have read: then it may change what it gave.
  if (++left == given.size()) {
    arrived = left = 0;
    changed.notify_all();
    return;
  }
  wait([&] { return left == 0; });
}

}  // namespace abele::device
