"""The report page in a browser: what a user sees, clicks and zooms. Needs Chromium (Debian's package chromium)."""

import json
import re

import abele
import pytest
import torch
from abele._native import core
from support import browser as browsers

pytestmark = pytest.mark.skipif(browsers.program() is None, reason="needs chromium to open the page")

# The picture of the timeline as text, to tell whether it has changed.
_DRAWN = "document.getElementById('canvas').toDataURL()"
_CHOSEN = "document.getElementById('chosen').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
    abele.BeginBlock(net[1], ipu_id=1)
    options = abele.Options()
    options.Training.gradientAccumulation(4)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, target):
            return torch.nn.functional.mse_loss(self.net(x), target)

    model = abele.trainingModel(Loss(), options, optimizer=torch.optim.Adam(net.parameters()))
    model(torch.randn(8, 8), torch.randn(8, 4))
    path = tmp_path_factory.mktemp("page") / "report.html"
    model.report(path)
    model.destroy()
    return path


@pytest.fixture(scope="module")
def browser():
    browser = browsers.Browser()
    yield browser
    browser.close()


@pytest.fixture(params=[1280, 400])
def opened(request, browser, page):
    browser.resize(request.param)
    browser.scheme("light")
    browser.open(page)
    browser.complaints.clear()
    yield browser
    assert browser.complaints == []


def _place(browser):
    """Left edge, top edge, width and height of the timeline, scrolled into view."""
    browser.ask("document.getElementById('canvas').scrollIntoView({block: 'center'})")
    rect = browser.ask("(({x, y, width, height}) => [x, y, width, height])(canvas.getBoundingClientRect())")
    return rect


def test_nothing_is_cut_off_at_either_width(opened):
    assert opened.ask("document.title") == "Loss, training"
    assert opened.ask("document.documentElement.scrollWidth <= window.innerWidth")
    # Tables may be wider: they scroll by themselves.
    cut = "[...document.querySelectorAll('body *')].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth"
    cut += " && getComputedStyle(e).overflowX === 'visible' && !e.closest('.scroll, pre')).map(e => e.outerHTML)"
    assert opened.ask(cut) == []


# Numbers with a unit that a line break parts, of all text that is shown.
_PARTED = r"""
(() => {
  const found = [], texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode())
    for (const match of text.data.matchAll(/[\d.]+[ \u00a0]([µmn]?s|([KMGT]i)?B|%)(?!\w)/g)) {
      const range = document.createRange();
      range.setStart(text, match.index);
      range.setEnd(text, match.index + match[0].length);
      if (new Set([...range.getClientRects()].map((part) => Math.round(part.top))).size > 1) found.push(match[0]);
    }
  return found;
})()"""


def test_units_stay_beside_their_numbers(opened):
    assert opened.ask(_PARTED) == []


def test_the_timeline_zooms_and_moves(opened):
    left, top, width, _ = _place(opened)
    whole = opened.ask(_DRAWN)
    opened.mouse("mouseWheel", left + width / 2, top + 60, deltaX=0, deltaY=-300)
    closer = opened.changed(_DRAWN, whole)
    assert closer != whole
    opened.ask("canvas.focus()")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    moved = opened.changed(_DRAWN, closer)
    assert moved not in (closer, whole)
    opened.mouse("mousePressed", left + width / 2, top + 60, button="left", buttons=1)
    opened.mouse("mouseMoved", left + width / 2 + 60, top + 60, button="left", buttons=1)
    opened.mouse("mouseReleased", left + width / 2 + 60, top + 60, button="left")
    assert opened.changed(_DRAWN, moved) != moved
    assert opened.ask(_CHOSEN) == ""  # a drag is no click
    opened.ask("document.querySelector('[data-zoom=all]').click()")
    assert opened.ask(_DRAWN) == whole


def test_a_click_says_what_a_span_is(opened):
    left, top, width, height = _place(opened)
    spans = set()
    for row in range(30, int(height), 13):
        opened.click(left + 0.75 * width, top + row)
        spans.add(opened.ask(_CHOSEN))
    said = [text for text in spans if text]
    assert said and all(re.fullmatch(r".+ on .+: \S+ \S+, \S+ \S+ after the beginning", text) for text in said)
    assert any("host" in text for text in said)


def test_light_and_dark(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.ask(ground) == "rgb(255, 255, 255)"
    light = opened.ask(_DRAWN)
    opened.scheme("dark")
    assert opened.changed(ground, "rgb(255, 255, 255)") == "rgb(20, 23, 26)"
    assert opened.changed(_DRAWN, light) != light


def test_a_hundred_thousand_spans_are_drawn_once_a_pixel(browser, tmp_path):
    """By count: how many rectangles a frame draws depends on the width of the window, not on the length of the run."""
    events = [{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "training, measured"}}]
    for k in range(100_000):
        events.append({"ph": "X", "pid": 1, "tid": k % 4, "name": f"fwd/{k % 4} [{k}]", "cat": "forward"})
        events[-1] |= {"ts": 10.0 * (k // 4), "dur": 8.0}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    core().writeTracePage(str(tmp_path / "page.html"), str(trace))
    browser.resize(1280)
    browser.open(tmp_path / "page.html")
    browser.ask(
        "(() => { const draw = CanvasRenderingContext2D.prototype.fillRect; window.count = 0;"
        " CanvasRenderingContext2D.prototype.fillRect = function (...a) { ++window.count; draw.apply(this, a); }; })()"
    )
    _place(browser)
    for factor in (2, 0.5, 0.5, 0.5):
        browser.ask(f"(window.count = 0, document.querySelector('[data-zoom=\"{factor}\"]').click())")
        assert 0 < browser.ask("window.count") < 2 * 4 * 1280  # a pixel has the end of one and the beginning of another
    assert browser.complaints == []
