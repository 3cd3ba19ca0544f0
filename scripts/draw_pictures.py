"""Draws the pictures of the documents, docs/pictures: timelines of steps that the simulator predicts, and report pages.

    scripts/draw_pictures.py [--check | --report]

Timelines (*.svg) have no date and no measured time, so that the same code draws the same files. --check: fails where
one differs. --report: also pictures (report-*.png) of the page that a step writes. They show a date and times, so that
each run draws others. They are made in Chromium (Debian's package chromium), wide and narrow, light and dark.
"""

import argparse
import json
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "support")]

import abele  # noqa: E402 (found in the tree)

FOLDER = ROOT / "docs" / "pictures"
COLOURS = {"F": "#2f7bd6", "B": "#1f8f5f", "W": "#7a5bd0", "U": "#c77700"}
WORDS = {"F": "forward", "B": "backward", "W": "gradient of the weights", "U": "update"}
WIDTH, LEFT, ROW, BAR = 900, 80, 22, 18  # pixels: the drawing, the column of names, a device's row, an action's bar


def stage(ms, gradient_ms=0.0):
    return {
        "forward_ns": int(ms * 1e6),
        "backward_ns": int(2 * ms * 1e6 - gradient_ms * 1e6),
        "weight_grad_ns": int(gradient_ms * 1e6),
    }


EVEN = [stage(1, 1)] * 4
# A title and the arguments of abele.simulate for each timeline of a picture.
PICTURES = {
    "pipeline": [
        ("four stages, eight micro-batches (1f1b)", (EVEN, "1f1b", 8)),
    ],
    "schedules": [
        ("gpipe", (EVEN, "gpipe", 8)),
        ("1f1b", (EVEN, "1f1b", 8)),
        ("zero-bubble", (EVEN, "zero-bubble", 8)),
    ],
    "micro_batches": [
        ("4 micro-batches", (EVEN, "1f1b", 4)),
        ("16 micro-batches", (EVEN, "1f1b", 16)),
    ],
    "splits": [
        ("one device has three quarters of the work", ([stage(3), stage(1)], "1f1b", 8)),
        ("each has half of it", ([stage(2), stage(2)], "1f1b", 8)),
    ],
}


def spans_of(simulation):
    """(device, begin, length, name, kind) of each action, in us."""
    events = json.loads(simulation.traceText())["traceEvents"]
    return [(each["tid"], each["ts"], each["dur"], each["name"], each["cat"]) for each in events if each["ph"] == "X"]


def draw(timelines):
    """One SVG: timelines below each other, on one scale."""
    steps = [(title, abele.simulate(*arguments)) for title, arguments in timelines]
    scale = (WIDTH - LEFT - 10) / (max(step["step_ns"] for _, step in steps) / 1e3)
    parts, kinds, y = [], set(), 0
    for title, step in steps:
        spans = spans_of(step)
        devices = sorted({span[0] for span in spans})
        waiting = f"{step['step_ns'] / 1e6:.0f} ms, devices wait {100 * step['bubble']:.0f} %"
        parts.append(text(0, y + 16, f"{title}: {waiting}", "bold"))
        y += 26
        for row, _ in enumerate(devices):
            parts.append(text(0, y + row * ROW + 13, f"device {row}"))
            parts.append(f'<rect x="{LEFT}" y="{y + row * ROW}" width="{WIDTH - LEFT - 10}" height="{BAR}" class="w"/>')
        for tid, begin, length, name, kind in spans:
            kinds.add(kind)
            x, width = LEFT + begin * scale, length * scale
            top = y + devices.index(tid) * ROW
            fill = COLOURS.get(kind, "#888888")
            parts.append(
                f'<rect x="{x:.2f}" y="{top}" width="{max(width - 0.6, 0.4):.2f}" height="{BAR}" fill="{fill}">'
                f"<title>{escape(name)}</title></rect>"
            )
        y += len(devices) * ROW + 14
    x = LEFT
    for kind in COLOURS:
        if kind in kinds:
            parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[kind]}"/>')
            parts.append(text(x + 18, y + 11, WORDS[kind]))
            x += 40 + 8 * len(WORDS[kind])
    said = "; ".join(title for title, _ in timelines)
    # Grey letters are read on light and on dark ground.
    style = "text{font:13px sans-serif;fill:#808080}.bold{font-weight:bold}.w{fill:#80808033}"
    size = f'viewBox="0 0 {WIDTH} {y + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(said)}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"


def text(x, y, said, kind=""):
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(said)}</text>'


def write_report(path):
    """The report page of a small transformer's step on two devices."""
    import torch

    class Texts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
            self.embed = torch.nn.Embedding(500, 128)
            self.layers = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = torch.nn.Linear(128, 500)

        def forward(self, text, target):
            logits = self.head(self.layers(self.embed(text)))
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    torch.manual_seed(0)
    net, options = Texts(), abele.Options().showCompilationProgressBar(False)
    abele.BeginBlock(net.layers.layers[2], "second half", ipu_id=1)
    options.Training.gradientAccumulation(8)
    step = abele.trainingModel(net, options, optimizer=torch.optim.AdamW(net.parameters()))
    for _ in range(4):
        step(torch.randint(500, (32, 32)), torch.randint(500, (32, 32)))
    step.report(path)
    step.destroy()


def draw_report():
    from browser import Browser

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(page)
        browser = Browser()
        for width, height in ((1280, 1000), (400, 800)):
            for scheme in ("light", "dark"):
                browser.resize(width, height)
                browser.scheme(scheme)
                browser.open(page)
                browser.ask("0")  # it is drawn
                if (width, scheme) in ((1280, "light"), (400, "dark")):  # the documents show these; all may complain
                    browser.picture(FOLDER / f"report-{width}-{scheme}.png", whole=False)
        browser.close()
    if browser.complaints:
        sys.exit("\n".join(["the page complains:", *browser.complaints]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--report", action="store_true")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, timelines in PICTURES.items():
        path, drawn = FOLDER / f"{name}.svg", draw(timelines)
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            stale.append(path.name)
            if not args.check:
                path.write_text(drawn, encoding="utf-8")
    if args.report:
        draw_report()
    if args.check and stale:
        sys.exit(f"{', '.join(stale)}: stale; run scripts/draw_pictures.py")
    print(f"{len(PICTURES)} pictures, {len(stale)} {'stale' if args.check else 'written'}")


if __name__ == "__main__":
    main()
