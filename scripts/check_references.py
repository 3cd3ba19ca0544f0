#!/usr/bin/env python3
"""Do the files and symbols exist that comments and documents name? Usage: scripts/check_references.py

Files: words that start with a folder of this tree (src/plan/plan.h, docs/ir.md, test/golden) or end as sources do
(plan.h, ir/text.h), in comments and documents. Symbols: names in backticks with :: or with () behind them, in comments
and in the READMEs of folders; their last part must be a word of some source. What belongs to others is listed below.
Sections: "executor.md, section 5" and "options.md sections 9 and 10" name headings or items of pages of docs/spec; the
rows of test/spec/rows.txt do too. Links: between documents, to a file and to a heading in it.
"""

import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PYTHON = {".py", ".pyi"}
CPP = {".h", ".cc", ".cpp", ".def"}
TOP = "src|include|docs|python|test|tools|scripts|bench|examples|cmake"
# Nothing that belongs to a longer path or a URL stands before it.
BEFORE = r"(?<![\w/.:$~{}<>@*-])"
PATH = re.compile(rf"{BEFORE}(?:{TOP})/[\w./*-]*[\w*]")
NAME = re.compile(rf"{BEFORE}(?:[A-Za-z_]\w*/)*[A-Za-z_]\w*\.(?:h|cc|def|py|md|air|cmake|cpp)\b(?!:\d|[\w/(-])")
# Qualified names, and words with a capital inside.
SYMBOL = re.compile(
    r"(?<![\w.:/\"-])(?:[A-Za-z_]\w*::)+~?[A-Za-z_]\w*|(?<![\w./:\"-])[A-Za-z]+[a-z0-9][A-Z]\w*\b(?![\"/.-])"
)
SPECIFICATION = ROOT / "docs" / "spec"
PAGES = {page.stem: page.read_text() for page in SPECIFICATION.glob("*.md")}
NUMBER = r"\d+(?:\.\d+)?"
SOURCE = re.compile(
    rf"{BEFORE}({'|'.join(PAGES)})\.md,?((?:,? (?:and |to )?(?:sections? |items? |points? )?{NUMBER}\b)+)"
)
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)")
CPP_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|(//[^\n]*)')

FOREIGN_FILES = {
    # the folder of installed headers
    "include/abele/detail",
    # LibTorch
    *("ATen/ATen.h", "ATen/ops/add.h", "torch/csrc/utils/pybind.h", "torch/extension.h", "torch/nn/module.h"),
    *("torch/optim/adam.py", "torch/optim/rmsprop.py", "torch/optim/sgd.py", "torch/torch.h"),
    # what users write
    *("before.air", "captured.air", "in.air", "train.py"),
}
FORMER_FOLDERS = ("docs/adr/0011",)  # tells what stood in a folder that is gone
FOREIGN_SYMBOLS = {
    *(
        "AddressSanitizer",
        "ThreadSanitizer",
        "CamelCase",
        "camelBack",
        "NaNs",
        "TiB",
        "CompletedProcess",
        "PermissionError",
    ),
    *("GroupBERT", "OpenMP", "OpenMPI", "PopART", "PopDist", "PopVision", "SpectralNormalization", "TensorFlow"),
    *("TorchScript", "ZeRO", "isTensorSubclassLike", "oneDNN"),
}


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    ).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).exists()]


def split(name: str, text: str) -> tuple[str, str]:
    """(comments, code) of a file: the text twice, with the other part made blank so that lines stay where they are."""
    suffix = PurePosixPath(name).suffix
    if suffix == ".md":
        return re.sub(r"^( *)(`{3,}).*?^\1\2", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M | re.S), ""
    if suffix in CPP:
        kept = [(m.start(1), m.end(1)) for m in CPP_COMMENT.finditer(text) if m[1]]
    elif suffix in PYTHON or name == "dev":
        kept = _python_comments(text)
    elif "CMake" in name and suffix != ".json":
        kept = [m.span() for m in re.finditer(r"#[^\n]*", text)]
    else:
        kept = []
    blank = re.sub(r"[^\n]", " ", text)
    said, code = list(blank), list(text)
    for begin, end in kept:
        said[begin:end] = text[begin:end]
        code[begin:end] = blank[begin:end]
    return "".join(said), "".join(code)


def _python_comments(text: str) -> list[tuple[int, int]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kept, at_start = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        documents = token.type == tokenize.STRING and at_start and token.string.startswith(('"""', 'r"""'))
        if token.type == tokenize.COMMENT or documents:
            kept.append((starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            at_start = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return kept


def has_section(page: str, number: str) -> bool:
    return re.search(rf"^(?:#+ )?{re.escape(number)}\.? ", PAGES[page], re.MULTILINE) is not None


def anchors(name: str) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.*)$", split(name, (ROOT / name).read_text())[0], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def link_findings(name: str, text: str) -> list[str]:
    found = []
    text = re.sub(r"`[^`\n]*`", lambda code: " " * len(code[0]), text)
    for match in LINK.finditer(text):
        target = os.path.normpath(ROOT / PurePosixPath(name).parent / match[1]) if match[1] else str(ROOT / name)
        known = os.path.exists(target)
        if known and match[2] and target.endswith(".md"):
            known = match[2] in anchors(os.path.relpath(target, ROOT))
        if not known:
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: the link {match[0][1:]} leads nowhere")
    return found


def rows_without_section() -> list[str]:
    name = "test/spec/rows.txt"
    rows = enumerate((ROOT / name).read_text().splitlines(), 1)
    named = [(line, *row.split("/")[:2]) for line, row in rows if not row.startswith("#")]
    return [
        f"{name}:{line}: docs/spec has no {page}.md, section {number}"
        for line, page, number in named
        if page not in PAGES or (number[0].isdigit() and not has_section(page, number))
    ]


class References:
    def __init__(self, files: list[str]):
        self.files = set(files)
        self.folders = {folder.as_posix() for name in files for folder in PurePosixPath(name).parents}
        self.endings = {"/".join(parts[i:]) for parts in (n.split("/") for n in files) for i in range(len(parts))}
        self.words: set[str] = set()
        self.comments = {}
        for name in files:
            suffix = PurePosixPath(name).suffix
            if suffix in CPP | PYTHON | {".json", ".md", ".txt", ".cmake", ".toml"} or name == "dev":
                self.comments[name], code = split(name, (ROOT / name).read_text(errors="replace"))
                self.words.update(re.findall(r"\w+", code))

    def has_path(self, word: str) -> bool:
        word = word.rstrip("/.").replace("NAME", "*")
        if "*" in word:
            return any(PurePosixPath(name).match(word) for name in self.files | self.folders)
        return (
            word in self.files or word in self.folders or any(f"{word}{s}" in self.files for s in (".h", ".cc", ".py"))
        )

    def has_name(self, word: str) -> bool:
        return word in self.endings or word in FOREIGN_FILES

    def findings_of(self, name: str) -> list[str]:
        found = []
        text = self.comments[name]

        def add(match, what):
            found.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}")

        for match in PATH.finditer(text):
            beside = (PurePosixPath(name).parent / match[0]).as_posix()
            known = match[0] in FOREIGN_FILES or self.has_path(match[0]) or self.has_path(beside)
            if not known and not name.startswith(FORMER_FOLDERS):
                add(match, f"there is no {match[0]}")
        for match in NAME.finditer(text):
            if not match[0].startswith(tuple(f"{top}/" for top in TOP.split("|"))) and not self.has_name(match[0]):
                add(match, f"there is no file {match[0]}")
        for match in SOURCE.finditer(text):
            for number in re.findall(NUMBER, match[2]):
                if not has_section(match[1], number):
                    add(match, f"docs/spec/{match[1]}.md has no section {number}")
        if not name.endswith(".md") or PurePosixPath(name).name == "README.md":
            for match in SYMBOL.finditer(text):
                if match[0].split("::")[-1] not in self.words and match[0] not in FOREIGN_SYMBOLS:
                    add(match, f"no source has {match[0]}")
        return found


def main() -> int:
    references = References(tracked())
    findings = [finding for name in sorted(references.comments) for finding in references.findings_of(name)]
    findings += rows_without_section()
    for name in filter(lambda name: name.endswith(".md"), sorted(references.comments)):
        findings += link_findings(name, references.comments[name])
    for finding in findings:
        print(finding)
    print(f"references: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
