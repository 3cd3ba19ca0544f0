"""A training that stops when the system asks it to, and a server of the trained model."""

import concurrent.futures
import signal
from pathlib import Path

import abele
import torch


def train(folder: Path, net: torch.nn.Module, x: torch.Tensor, last: int) -> int:
    model = abele.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    found = abele.load_checkpoint(folder, model)
    step: int = 0 if found is None else found["step"]
    with abele.stop_on_signal(signal.SIGTERM) as stop:
        while step < last and not stop:
            model(x)
            step += 1
            if stop.agreed():
                break
    why: signal.Signals | None = stop.signal
    path = abele.save_checkpoint(folder, model, step=step, notes={"why": str(why)})
    print(path, stop.requested)
    return step


def serve(net: torch.nn.Module, requests: list[torch.Tensor]) -> list[torch.Tensor]:
    with abele.serve(abele.inferenceModel(net), batch_rows=8, longest_wait_ms=1.0) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            answers: list[torch.Tensor] = list(threads.map(server, requests))
        later: abele.Answer | None = server.try_submit(requests[0])
        if later is not None and not later.done():
            answers.append(later.result(timeout=10.0))
        statistics: abele.ServerStatistics = server.statistics()
        slow: float = statistics.p99_s
        assert slow >= 0 and statistics.requests >= len(requests)
    return answers
