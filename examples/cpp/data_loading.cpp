// Batches of what one call takes: from tensors, from a function of an index ahead of time, and from a stream.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <vector>

int main() {
  abele::Options options;
  options.deviceIterations(2).Training().gradientAccumulation(3);  // 6 micro-batches a call
  const at::Tensor x = torch::arange(100).reshape({50, 2}), labels = torch::arange(50);

  abele::DataLoader shuffled(options, {x, labels}, {.batch_size = 4, .shuffle = true, .seed = 1});
  std::printf("%ld batches of %ld rows\n", shuffled.size(), shuffled.combinedBatchSize());
  bool together = true;  // rows of all tensors stay together
  for (const auto& batch : shuffled) together = together && batch[0].select(1, 0).equal(2 * batch[1]);

  abele::DataLoader ahead(options, [&](int64_t i) { return std::vector<at::Tensor>{x[i]}; }, 50,
                          {.batch_size = 4, .mode = abele::DataLoaderMode::kAsync});
  int64_t sum = 0;
  for (const auto& batch : ahead) sum += batch[0].sum().item<int64_t>();
  std::printf("ahead of time: %ld of %ld\n", sum, x.narrow(0, 0, 48).sum().item<int64_t>());

  const auto start = [&]() -> abele::NextChunk {
    return [&, row = int64_t{0}](std::vector<at::Tensor>& chunk) mutable {
      if (row == 50) return false;
      chunk = {x.narrow(0, row, 10)};  // chunks of any size
      row += 10;
      return true;
    };
  };
  abele::DataLoader stream(options, start, {.batch_size = 4});
  int64_t rows = 0;
  for (const auto& batch : stream) rows += batch[0].size(0);
  std::printf("stream: %ld rows\n", rows);
  return together && sum == x.narrow(0, 0, 48).sum().item<int64_t>() && rows == 48 ? 0 : 1;
}
