"""Operators of poptorch inside a forward."""

import poptorch
import torch


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        def body(value: torch.Tensor) -> torch.Tensor:
            return value * 2

        (x,) = poptorch.for_loop(3, body, [x])
        x = poptorch.dynamic_slice(x, 0, start, 2, 1)
        x = poptorch.ipu_print_tensor(poptorch.nop(x), "sliced", print_gradient=False)
        return poptorch.serializedMatMul(x, x.t(), poptorch.MatMulSerializationMode.OutputChannels, 2)


def run() -> torch.Tensor:
    options = poptorch.Options()
    options.showCompilationProgressBar(False).threadsPerDevice(1)
    model = poptorch.inferenceModel(Net(), options)
    result: torch.Tensor = model(torch.ones(4, 4), torch.tensor([1], dtype=torch.int32))
    return result


if __name__ == "__main__":
    print(run())
