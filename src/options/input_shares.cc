#include "options/input_shares.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "base/error.h"
#include "options/store.h"

namespace abele::options {

InputShares inputSharesOf(const Options::Values& values) {
  const auto processes = values.get<int64_t>("num_distributed_processes");
  const auto process = values.get<int64_t>("distributed_process_id");
  ABELE_REQUIRE(process < processes, E0702,
                {.what = cat("this is process ", process, " of ", processes),
                 .expected = "an index from 0 to the number of processes - 1",
                 .remedy = "call Distributed.configureProcessId(index, number)"});
  InputShares shares = {.replicas = values.get<int64_t>("replication_factor")};
  if (processes > 1 && values.get<int64_t>("devices_per_process") > 0) {
    const auto chosen = values.get<int64_t>("processes_per_replica");
    const int64_t fewest = processes / std::gcd(processes, shares.replicas);
    shares.processes = chosen > 0 ? std::min(chosen, processes) : fewest;
    shares.replicas = std::max<int64_t>(1, shares.replicas * shares.processes / processes);
  }
  shares.count = processes / shares.processes;
  shares.own = process / shares.processes;
  return shares;
}

SampleBlock sampleBlockOf(int64_t count, int64_t processes, int64_t process, int64_t step, bool drop_last) {
  if (!drop_last) {
    const int64_t larger = count % processes;  // this many processes have one sample more
    return {process * (count / processes) + std::min(process, larger), count / processes + (process < larger ? 1 : 0)};
  }
  const int64_t length = step * (count / (step * processes));
  return {process * length, length, length == 0 ? 0 : count % length};
}

}  // namespace abele::options
