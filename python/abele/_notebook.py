"""What notebooks show of a model, a report and a simulation: small pieces of HTML that need nothing else."""

import json
from html import escape

_MOST_SPANS = 4000  # in a drawing: a notebook keeps it as text
_COLOURS = {"F": "#2f7bd6", "B": "#1f8f5f", "W": "#7a5bd0", "U": "#c77700"}
_WORDS = {"F": "forward", "B": "backward", "W": "weight gradient", "U": "update"}
_WAITING = "#8884"  # seen on light and dark ground


def ofSimulation(simulation):
    """A Simulation: its figures, the step as a drawing, and a row for each device."""
    figures = [("step", _time(simulation["step_ns"])), ("bubble", _share(simulation["bubble"]))]
    figures.append(("fullest device", _bytes(max(worker["peak_bytes"] for worker in simulation["workers"]))))
    header = ("device", "busy", "waiting", "of the time", "peak memory")
    rows = [
        (
            escape(str(worker["device"])),
            _time(worker["busy_ns"]),
            _time(worker["idle_ns"]),
            _bar(worker["utilisation"]),
            _bytes(worker["peak_bytes"]) + ("" if worker.get("fits", True) else ", too much"),
        )
        for worker in simulation["workers"]
    ]
    return _box("Simulated step", figures, _drawing(simulation) + _table(header, rows))


def ofReport(report, title="Last step"):
    """What an executor's report() returned."""
    step_ns = report["step_ns"]
    figures = [("step", _time(step_ns)), ("bubble", _share(report["bubble"]))] if step_ns else []
    figures.append(("schedule", escape(report["schedule"])))
    figures.append(("capture and compilation", _time(1e9 * (report["capture_s"] + report["compile_s"]))))
    header = ("stage", "device", "busy", "waiting", "of the step", "peak memory")
    rows = [
        (
            escape(stage["name"]),
            str(stage["device"]),
            _time(stage["busy_ns"]),
            _time(stage["waiting_ns"]),
            _bar(stage["busy_ns"] / step_ns) if step_ns else "",
            _bytes(stage["peak_bytes"]),
        )
        for stage in report["stages"]
    ]
    return _box(escape(title), figures, _table(header, rows))


def ofModel(name, training, report, facts):
    """A wrapped model. report, facts: None and nothing before compilation."""
    title = f"{name}, {'training' if training else 'inference'}"
    if report is None:
        return _box(escape(title), [], "<p>Not compiled yet: the first call does it.</p>")
    said = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return ofReport(report, title) + (f"<ul>{said}</ul>" if said else "")


def _drawing(simulation):
    """The step, a line for each device; nothing where it has too many actions."""
    spans = [event for event in json.loads(simulation.traceText())["traceEvents"] if event["ph"] == "X"]
    if not spans or len(spans) > _MOST_SPANS:
        return ""
    end = max(span["ts"] + span["dur"] for span in spans) or 1
    rows = {tid: row for row, tid in enumerate(sorted({span["tid"] for span in spans}))}
    drawn = [_rectangle(span, rows[span["tid"]], 1000 / end) for span in spans]
    kinds = {span["cat"] for span in spans}
    legend = " ".join(
        f'<span style="color:{_COLOURS[kind]}">&#9632;</span> {_WORDS[kind]}' for kind in _COLOURS if kind in kinds
    )
    height = 18 * len(rows)
    return (
        f'<svg viewBox="0 0 1000 {height}" width="100%" height="{height}" preserveAspectRatio="none" role="img" '
        f'aria-label="the step, a line for each device" style="background:{_WAITING};max-width:1000px">'
        f"{''.join(drawn)}</svg><div>{legend}</div>"
    )


def _rectangle(span, row, scale):
    width = max(scale * span["dur"] - 0.3, 0.3)
    said = f"{escape(span['name'])}: {_time(1000 * span['dur'])}"
    return (
        f'<rect x="{scale * span["ts"]:.2f}" y="{18 * row}" width="{width:.2f}" height="15" '
        f'fill="{_COLOURS.get(span["cat"], "#888")}"><title>{said}</title></rect>'
    )


def _box(title, figures, body):
    said = " &middot; ".join(f"{name} <b>{value}</b>" for name, value in figures)
    return f"<div><div><b>{title}</b></div><div>{said}</div>{body}</div>"


def _table(header, rows):
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bar(share):
    width = 100 * min(max(share, 0), 1)
    return (
        f'<div style="width:8em;background:{_WAITING}" title="{_share(share)}">'
        f'<div style="width:{width:.1f}%;background:{_COLOURS["F"]}">&nbsp;</div></div>'
    )


def _share(share):
    return f"{100 * share:.1f} %"


def _time(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("&micro;s", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns"


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
