"""Output for notebooks: small pieces of HTML, closed and escaped, that fetch nothing."""

import html.parser

import abele
import pytest
import torch


class Page(html.parser.HTMLParser):
    """The texts of the cells, row by row, and all text. Refuses scripts, unclosed tags, and references to fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.text, self.tags = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag not in {"script", "link", "iframe", "img", "style"}, tag  # a style would reach the whole notebook
        assert not {"src", "href"} & {name for name, _ in attributes}
        assert not any(name.startswith("on") for name, _ in attributes)
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        abele.Block.start("<lower & co>", ipu_id=0)
        x = torch.relu(self.lower(x))
        abele.Block.start("upper", ipu_id=1)
        return abele.identity_loss(self.upper(x), reduction="mean")


@pytest.fixture(scope="module")
def model():
    options = abele.Options()
    options.Training.gradientAccumulation(4)
    result = abele.trainingModel(Net(), options)
    result(torch.ones(8, 8))
    return result


def test_a_report_has_a_row_for_each_stage(model):
    report = model.report()
    page = Page(report._repr_html_())
    header, *rows = page.rows
    assert header[:2] == ["stage", "device"]
    assert [row[1] for row in rows] == [str(stage["device"]) for stage in report["stages"]] == ["0", "1"]
    assert [row[0] for row in rows] == [stage["name"] for stage in report["stages"]]
    assert f"bubble {100 * report['bubble']:.1f} %" in page.text and report["schedule"] in page.text
    assert dict(report) == report  # it is still the dict that it was


def test_a_model_says_where_its_time_goes(model):
    page = Page(model._repr_html_())
    assert "Net, training" in page.text and len(page.rows) == 3 and "li" in page.tags
    assert "The devices work" in page.text


def test_names_are_escaped(model):
    text = model._repr_html_()
    assert "<lower" not in text
    renamed = abele.inferenceModel(type("<b>Odd</b>", (Net,), {})())
    page = Page(renamed._repr_html_())
    assert "<b>Odd</b>, inference" in page.text


def test_a_model_that_is_not_compiled_says_so():
    page = Page(abele.inferenceModel(torch.nn.ReLU())._repr_html_())
    assert "ReLU, inference" in page.text and "Not compiled yet" in page.text and page.rows == []


def test_a_compiled_model_without_a_step():
    model = abele.inferenceModel(torch.nn.ReLU())
    model.compile(torch.ones(2, 2))
    page = Page(model._repr_html_())
    assert len(page.rows) == 2 and "bubble" not in page.text


def test_a_simulation_is_drawn():
    stages = [{"forward_ns": 100, "backward_ns": 200}] * 3
    step = abele.simulate(stages, "1f1b", 4)
    page = Page(step._repr_html_())
    header, *rows = page.rows
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [row[1] for row in rows] == ["1.2 \u00b5s"] * 3
    # Forward and backward of four micro-batches in three stages, and three updates that take no time.
    assert page.tags.count("rect") == page.tags.count("title") == 3 * (4 + 4 + 1)
    assert f"bubble {100 * step['bubble']:.1f} %" in page.text
    assert "forward" in page.text and "backward" in page.text


def test_a_large_simulation_is_a_table_alone():
    step = abele.simulate([{"forward_ns": 100, "backward_ns": 200}] * 8, "1f1b", 512)
    text = step._repr_html_()
    assert "rect" not in Page(text).tags and len(text) < 20_000


def test_devices_that_have_too_little_memory_are_marked():
    step = abele.simulate([{"forward_ns": 1, "persistent_bytes": 2048}] * 2, device_bytes=1024)
    assert all(row[-1] == "2 KiB, too much" for row in Page(step._repr_html_()).rows[1:])
