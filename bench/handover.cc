// abele-handover BYTES ROUNDS: one of two processes that send a message to and fro over links, as stages in several
// processes do. The first one prints the nanoseconds of each round trip. Started by bench/handover.py.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "collective/peers.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "abele-handover BYTES ROUNDS\n";
    return 2;
  }
  const int64_t bytes = std::stoll(argv[1]), rounds = std::stoll(argv[2]), warm = rounds / 10 + 1;
  const int64_t own = std::stoll(std::getenv("RANK"));
  const auto peers = abele::collective::Peers::join(abele::collective::kProcessGroup, own, 2);
  const at::Tensor message = at::zeros({bytes}, at::kByte);
  std::vector<int64_t> times_ns;
  peers->begin();
  for (int64_t round = 0; round < warm + rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (own == 0) peers->sendOn(0, message, 1);
    peers->receiveOn(1 - own, message, 1 - own);
    if (own == 1) peers->sendOn(1, message, 0);
    const auto time = std::chrono::steady_clock::now() - begin;
    if (round >= warm) times_ns.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  }
  for (const int64_t time : times_ns)
    if (own == 0) std::cout << time << "\n";
  abele::collective::Peers::leaveAll();
  return 0;
}
