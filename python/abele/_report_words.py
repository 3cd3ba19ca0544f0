"""What a report says in words: where the time goes, and what is predicted to help."""

import collections
import re

from ._simulate import simulate
from .strategies import schedules

_LEAST_GAIN = 0.01  # of the time of a micro-batch: less is within what predictions are wrong by
_BUSY = ("forward", "backward", "weight-gradient", "update")


def factsOf(trace, report, memory):
    """Sentences."""
    facts = []
    if trace is not None:
        facts += _ofTrace(trace)
    elif report is not None and report["step_ns"]:
        facts += _ofStages(report["stages"], report["step_ns"])
    if report is not None and report["workspace_bytes"]:
        facts.append(f"Kernels took {report['workspace_bytes'] / 2**20:.3g} MiB of workspace from the heap so far.")
    if memory is not None:
        facts += _ofMemory(memory)
    return facts


def _ofStages(stages, step_ns):
    busy = collections.Counter()
    for stage in stages:
        busy[stage["device"]] += stage["busy_ns"]
    return _pace({f"device {device}": ns / 1e3 for device, ns in busy.items()}, step_ns / 1e3)


def _ofTrace(trace):
    devices, calls = trace.devices(), trace.calls()
    if not devices or not calls:
        return []
    whole = sum(length for _, length in calls)
    busy = {
        track["label"]: sum(length for _, length, _, kind in track["rows"] if kind in _BUSY) / len(calls)
        for track in devices
    }
    facts = _pace(busy, whole / len(calls))
    facts += _waits(devices, whole)
    facts += _host(trace, whole, len(calls))
    predicted = [row for track in trace.devices("predicted") for row in track["rows"]]
    if predicted:
        us = max(begin + length for begin, length, *_ in predicted) - min(row[0] for row in predicted)
        mean = whole / len(calls)
        facts.append(
            f"A call takes {mean / 1e3:.4g} ms. The simulator predicts {us / 1e3:.4g} ms for its step, with the costs "
            f"that were measured; the difference is the host's part and what the runtime takes between actions."
        )
    return facts


def _pace(busy, whole):
    """Who sets the pace. busy: us by device in a call; whole: us of a call."""
    most = max(busy, key=busy.get)
    others = sorted((us for name, us in busy.items() if name != most), reverse=True)
    share = sum(busy.values()) / (whole * len(busy))
    facts = [f"The devices work {100 * share:.0f} % of the time; the rest they wait for each other or for the host."]
    if others and busy[most] > 1.15 * others[0]:
        mean = sum(busy.values()) / len(busy)
        facts.append(
            f"{most} works {busy[most] / 1e3:.4g} ms a call, the next one {others[0] / 1e3:.4g} ms: it sets the pace. "
            f"With the same work in equal parts each would have {mean / 1e3:.4g} ms. Move layers away from it, or let "
            "AutoStage.AutoSplit cut the model."
        )
    elif others:
        facts.append("The work is in nearly equal parts: no device sets the pace alone.")
    return facts


def _waits(devices, whole):
    facts = []
    for track in devices:
        reasons = collections.Counter()
        for _, length, name, kind in track["rows"]:
            if kind == "wait":
                reasons[re.sub(r"^wait for | \[\d+\]$", "", name)] += length
        if reasons:
            reason, us = reasons.most_common(1)[0]
            if us > 0.1 * whole:
                facts.append(f"{track['label']} waits {100 * us / whole:.0f} % of the time for {reason}.")
    return facts


def _host(trace, whole, calls):
    parts = collections.Counter()
    for track in trace.tracks:
        if track["label"] == "host":
            for _, length, name, _ in track["rows"]:
                parts[name] += length
    outside = parts["inputs"] + parts["results"]
    if outside > 0.05 * whole:
        return [
            f"The host takes {outside / calls / 1e3:.4g} ms a call for inputs and results, {100 * outside / whole:.0f} "
            "% of it: more micro-batches in a call (deviceIterations) share that."
        ]
    return []


def _ofMemory(memory):
    fullest = max(memory["devices"], key=lambda device: device["peak_bytes"])
    if not fullest["peak_bytes"]:
        return []
    kind, size = max(fullest["by_class"].items(), key=lambda item: item[1])
    facts = [
        f"Device {fullest['device']} is the fullest, with {fullest['peak_bytes'] / 2**20:.4g} MiB; "
        f"{100 * size / fullest['peak_bytes']:.0f} % of it is {kind.replace('_', ' ')}."
    ]
    if kind == "stash" and size > 0.3 * fullest["peak_bytes"]:
        facts.append("The stash holds activations of micro-batches in work: recompute() or fewer of them need less.")
    return facts


def adviceOf(now):
    """Changes that the simulator predicts to be faster, the best first.

    Args:
        now: Simulations of the model.
    """
    own = "1f1b" if now.schedule == "forward" else now.schedule  # inference has one
    base, found = now(own, now.micro_batches)["step_ns"] / now.micro_batches, []

    def tried(what, how, schedule, micro_batches):
        try:
            step_ns = now(schedule, micro_batches)["step_ns"]
        except Exception as error:
            if getattr(error, "code", "") == "":
                raise
            return  # not with this number of micro-batches or stages
        gain = 1 - step_ns / micro_batches / base
        if gain >= _LEAST_GAIN:
            row = {"what": what, "how": how, "us": step_ns / 1e3, "gain": f"{100 * gain:.0f} % less a micro-batch"}
            found.append((gain, row))

    if now.training:
        for schedule in schedules():
            if schedule != own:
                how = f'PipelinedExecution(...).schedule("{schedule}")'
                tried(f"schedule {schedule}", how, schedule, now.micro_batches)
    setter = "Training.gradientAccumulation" if now.training else "deviceIterations"
    for factor in (2, 4):
        count = factor * now.micro_batches
        tried(f"{count} micro-batches of the same rows", f"opts.{setter}({count})", own, count)
    return [row for _, row in sorted(found, key=lambda each: -each[0])]


def simulated(costs, schedule, micro_batches, iterations, training):
    """A step of the same stages."""
    return simulate(costs, schedule, micro_batches, device_iterations=iterations if training else 1, training=training)
