"""A report as one page: what a step did, what its memory is for, and what would make it faster. Needs no network.

The page is report_page.html with the figures in it as JSON.
"""

from __future__ import annotations

import collections
import datetime
import json
import math
import os
import re
import tempfile
from pathlib import Path

from . import wrapping
from ._errors import Error, refused, userError
from ._native import core
from ._report_words import adviceOf, factsOf, simulated
from ._version import __version__
from ._whole_files import nativePath, writeText
from .strategies import schedules

_TEMPLATE = Path(__file__).with_name("report_page.html")
_MICRO_BATCH = re.compile(r" \[\d+\]$")


def readTrace(path):
    """The Trace of a file of the Chrome trace event format. Raises: E0712, E0501."""
    content = core().readWholeFile(nativePath(path), b"", -1)
    try:
        return Trace(_eventsOf(content.decode("utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise userError(
            "E0501",
            "executable-format",
            "this is no trace",
            at=str(path),
            found=f"{type(error).__name__}: {error}",
            expected="what model.trace(path) or PVTI_OPTIONS wrote",
        ) from error


def _eventsOf(text):
    try:
        events = json.loads(text)["traceEvents"]
    except json.JSONDecodeError:
        # The program did not end: the last lines are missing.
        events = json.loads(text[: text.rindex("\n")].rstrip().rstrip(",") + "]}")["traceEvents"]
    return [{**event, "name": event["name"], "pid": event["pid"], "tid": event["tid"]} for event in events]


class Trace:
    """The spans of a trace by track, in the order of the file's numbers."""

    def __init__(self, events):
        named = {(each["pid"], each["tid"], each["name"]): each["args"] for each in events if each["ph"] == "M"}
        spans = collections.defaultdict(list)
        for each in events:
            if each["ph"] == "X":
                row = (float(each["ts"]), float(each.get("dur", 0)), str(each["name"]), str(each.get("cat", "other")))
                if not all(map(math.isfinite, row[:2])):
                    raise refused(ValueError, f"a span at {row[0]} of length {row[1]}")
                spans[each["pid"], each["tid"]].append(row)
        begin = min((row[0] for rows in spans.values() for row in rows), default=0.0)
        self.tracks = []
        # Tracks of models first: their group says what it is.
        for pid, tid in sorted(spans, key=lambda key: (not self._isModel(named, key[0]), key)):
            group = str(named.get((pid, 0, "process_name"), {}).get("name", f"process {pid}"))
            label = str(named.get((pid, tid, "thread_name"), {}).get("name", f"thread {tid}"))
            rows = sorted(((row[0] - begin, *row[1:]) for row in spans[pid, tid]), key=lambda row: (row[0], -row[1]))
            self.tracks.append({"group": group, "label": label, "rows": rows})

    @staticmethod
    def _isModel(named, pid):
        return named.get((pid, 0, "process_name"), {}).get("name", "").endswith((", measured", ", predicted"))

    def devices(self, of="measured"):
        """The tracks of devices alone, of what was measured or predicted."""
        chosen = [track for track in self.tracks if track["group"].endswith(f", {of}")]
        return [track for track in chosen if re.match(r"device \d+(:|$)", track["label"])]

    def calls(self):
        """(begin, length) in us of each traced call."""
        rows = [row for track in self.tracks if track["label"] == "host" for row in track["rows"]]
        return [(row[0], row[1]) for row in rows if row[2].startswith("call ")]

    def actions(self):
        """What each track did, by action without its micro-batch."""
        found = []
        for track in self.tracks:
            if track["group"].endswith(", predicted"):
                continue
            by_name = collections.defaultdict(list)
            for _, length, name, _ in track["rows"]:
                by_name[_MICRO_BATCH.sub("", name)].append(length)
            for name, all_of_it in sorted(by_name.items(), key=lambda item: -sum(item[1])):
                found.append(
                    {
                        "track": track["label"],
                        "name": name,
                        "count": len(all_of_it),
                        "us": round(sum(all_of_it), 3),
                        "most": round(max(all_of_it), 3),
                    }
                )
        return found

    def page(self):
        """Columns for the page: names and kinds by number."""
        names, kinds, tracks = {}, {}, []
        for track in self.tracks:
            rows, open_until, depths = track["rows"], [], []
            for begin, length, *_ in rows:
                while open_until and open_until[-1] <= begin + 1e-3:
                    open_until.pop()
                depths.append(min(len(open_until), 2))
                open_until.append(begin + length)
            columns = {
                "group": track["group"],
                "label": track["label"],
                "begin": [round(row[0], 3) for row in rows],
                "length": [round(row[1], 3) for row in rows],
                "name": [names.setdefault(row[2], len(names)) for row in rows],
                "kind": [kinds.setdefault(row[3], len(kinds)) for row in rows],
            }
            if any(depths):
                columns["depth"] = depths
            tracks.append(columns)
        return {"names": list(names), "kinds": list(kinds), "tracks": tracks}


def write(path, title, trace=None, report=None, memory=None, explain="", options=(), simulations=None):
    """Writes the page. Raises: E0712.

    Args:
        trace: a Trace.
        report, memory: what the methods of an executor return.
        options: (name, value) pairs.
        simulations: Simulations of the model, or None.
    """
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    data = {
        "title": title,
        "made": f"Abele {__version__}, {now}",
        "figures": _figures(trace, report, memory),
        "facts": factsOf(trace, report, memory),
        "advice": adviceOf(simulations) if simulations is not None else [],
        "memory": memory,
        "explain": explain,
        "options": [[str(name), str(value)] for name, value in options],
        "actions": [] if trace is None else trace.actions(),
        **({"names": [], "kinds": [], "tracks": []} if trace is None else trace.page()),
    }
    # In a script element only this could end it.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\!--")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writeText(path, _TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", text, 1))


def writeOf(model, path, report):
    """The page of an executor that is compiled; report: its figures."""
    session, kind = model._native.session(), "training" if model._training else "inference"
    trace = None
    if report["step_ns"]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            core().traceLastCall(session, kind, os.fspath(file))
            trace = readTrace(file)
    compiled_here = not report["from_cache"]
    write(
        path,
        f"{wrapping.userClass(model.model).__name__}, {kind}",
        trace,
        report,
        _where(model.memoryReport) if compiled_here else None,
        _where(session.explain) or "" if compiled_here else "",
        sorted(model.options.toDict().items()),
        Simulations.of(model, report),
    )


def _where(call):
    """What it returns; None of a program that knows no such thing (E0705)."""
    try:
        return call()
    except Error as error:
        if error.code != "E0705":
            raise
        return None


def _figures(trace, report, memory):
    figures = []
    if report is not None and report["step_ns"]:
        figures.append((f"{report['step_ns'] / 1e6:.4g} ms", "last step"))
        figures.append((f"{100 * (1 - report['bubble']):.0f} %", "of the devices' time is work"))
        figures.append((str(len({stage["device"] for stage in report["stages"]})), "devices"))
        figures.append((report["schedule"], "schedule"))
        figures.append((f"{report['capture_s'] + report['compile_s']:.3g} s", "capture and compilation"))
    elif trace is not None and trace.calls():
        calls = [length for _, length in trace.calls()]
        figures.append((f"{sum(calls) / len(calls) / 1e3:.4g} ms", "a call"))
        figures.append((str(len(calls)), "traced calls"))
        figures.append((str(len(trace.devices())), "devices"))
    if memory is not None:
        figures.append((_bytes(max(device["peak_bytes"] for device in memory["devices"])), "fullest device"))
    return figures


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


class Simulations:
    """Predictions of the model under other schedules and with other numbers of micro-batches of the same rows."""

    @classmethod
    def of(cls, model, report):
        """None where the costs are not known, or the schedule cannot be simulated."""
        if report["from_cache"] or not report["step_ns"] or report["schedule"] not in (*schedules(), "forward"):
            return None
        costs = _where(model.costs)
        return None if costs is None else cls(model, report["schedule"], costs)

    def __init__(self, model, schedule, costs):
        options = model.options
        self.training, self.schedule, self._costs = model._training, schedule, costs
        self.micro_batches = options.Training.gradient_accumulation if self.training else options.device_iterations
        self._iterations = options.device_iterations

    def __call__(self, schedule, micro_batches):
        return simulated(self._costs, schedule, micro_batches, self._iterations, self.training)
