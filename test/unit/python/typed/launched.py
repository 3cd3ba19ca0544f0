"""A program for a launcher, which also times its own work."""

import gcipuinfo
import libpvti
import popdist
import popdist.poptorch
import poptorch
import torch


def choose(most: int) -> int:
    return min(most, popdist.getNumTotalReplicas())


@popdist.execute_on_instances({0})
def tell(text: str) -> int:
    return len(text)


def main() -> None:
    popdist.init()
    chosen: int | None = popdist.execute_on_instances(0, choose, 4)
    length: int | None = tell("hello")
    assert (chosen, length) == (1, 5) and popdist.getInstanceIndex() < popdist.getNumInstances()
    busy: list[str] = gcipuinfo.gcipuinfo().getNamedAttributeForAll("ipu utilisation")
    assert all(text.endswith("%") for text in busy)
    channel: libpvti.TraceChannel = libpvti.createTraceChannel("data")
    losses: libpvti.Series = libpvti.Graph("loss", "nats").addSeries("training")
    spread = libpvti.HeatmapDouble("spread", [0, 0.5, 1])
    options: poptorch.Options = popdist.poptorch.Options(ipus_per_replica=1)
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    with libpvti.Tracepoint(channel, "one batch"):
        out: torch.Tensor = model(torch.randn(2, 2))
    losses.add(out.sum().item())
    spread.add(out.flatten().tolist())
    libpvti.Tracepoint.event(channel, "done")
    popdist.synchronize()


if __name__ == "__main__":
    main()
