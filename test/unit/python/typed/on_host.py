"""Functions on the host, branches, hints and operators that PyTorch lacks."""

import poptorch
import torch


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def leaky(x: torch.Tensor, slope: float) -> torch.Tensor:
    like = [torch.empty_like(x)]
    (out,) = poptorch.custom_op([x], "LeakyRelu", "custom.ops", 1, example_outputs=like, attributes={"alpha": slope})
    return out


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.halve = poptorch.CPU(halve, "halve")
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv1d(4, 4, 1) for _ in range(2))

    def forward(self, x: torch.Tensor, is_small: torch.Tensor) -> dict[str, torch.Tensor]:
        half: torch.Tensor = self.halve(x)
        (chosen,) = poptorch.cond(is_small, torch.neg, [half], torch.abs, [x])
        with poptorch.MultiConv().availableMemoryProportions(0.5).planType(poptorch.MultiConvPlanType.Parallel):
            both = [convolution(chosen) for convolution in self.convolutions]
        summed = poptorch.set_available_memory(both[0] + both[1], 0.4)
        points: list[torch.Tensor] = [summed, poptorch.nop(half)]
        return {"summed": points[0], "half": points[1]}


compiled: list[str] = []


def decode(logits: torch.Tensor) -> torch.Tensor:
    lengths = torch.full((logits.shape[1],), logits.shape[0], dtype=torch.int32)
    _, _, paths = poptorch.ctc_beam_search_decoder(logits, lengths, blank=0, beam_width=4, top_paths=1)
    result: torch.Tensor = paths
    return result


def run() -> tuple[torch.Tensor, torch.Tensor]:
    assert not poptorch.isRunningOnIpu() and poptorch.ipuHardwareVersion() >= 0
    handle = poptorch.registerPostCompileHook(lambda: compiled.append("once"))
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(Net().eval(), options)
    out: dict[str, torch.Tensor] = model(torch.ones(1, 4, 2), torch.tensor([True]))
    handle.remove()
    assert compiled
    return out["summed"], out["half"]


if __name__ == "__main__":
    run()
