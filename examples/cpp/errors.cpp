// The errors that Abele throws and their texts. A model continues after an error.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <stdexcept>

int main() {
  torch::nn::Linear net(4, 2);
  auto model = abele::inferenceModel(net, [&](at::Tensor x) { return net(x); });
  model(torch::ones({3, 4}));
  try {
    model(torch::ones({3, 4}), torch::ones({3, 4}));  // forward takes one tensor
    return 1;
  } catch (const abele::UserError& error) {  // the program is wrong; code() tells which row of docs/errors.md
    std::printf("%s\n", error.what());
    if (error.code() != abele::ErrorCode::E0704) return 1;
  }
  model(torch::ones({3, 4}));

  auto branching = abele::inferenceModel([](at::Tensor x) { return x.sum().item<float>() > 0 ? x : -x; });
  try {
    branching(torch::ones({3}));
    return 1;
  } catch (const abele::Error& error) {  // base of UserError, DeviceError and InternalError
    std::printf("%s: %s\n", abele::errorCodeText(error.code()), abele::errorSummary(error.code()));
  }

  auto broken = abele::inferenceModel([](at::Tensor) -> at::Tensor { throw std::out_of_range("of the program"); });
  try {
    broken(torch::ones({3}));
    return 1;
  } catch (const std::out_of_range& error) {  // what forward throws comes out unchanged
    std::printf("unchanged: %s\n", error.what());
  }
}
