#!/usr/bin/env python3
"""Finds wording in new comments and docstrings that makes readers stumble. Usage: scripts/check_words.py [--all] [REV]

Reads the lines that were added since REV. The default is the commit where the branch left main, so on main itself it
reads only uncommitted changes. --all reads every line. Rewrite a sentence that it finds: subject first, active verb,
plain words.
"""

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

from check_references import CPP, PYTHON, split, tracked

PATTERNS = {
    "a question: write 'Returns true if ...' or 'Whether ...'": (
        r"^(?:Is|Are|Does|Do|Has|Have|Can|May|Was|Were|Did|Shall|Would|Must)\b[^.;:]*\?"
    ),
    "begins with 'of', 'whose' or 'whom': name the thing first": r"^(?:[Oo]f|[Ww]hose|[Ww]hom)\b",
    "'nobody', 'somebody', 'whoever': name the caller": r"\b(?:nobody|somebody|whoever)\b",
    "'is no X', 'is none': write 'is not a X'": (
        r"(?<![Tt]here )\b(?:is|are|was|were) (?:no (?!more\b|longer\b|such\b)[a-z]+|none\b(?! of\b))"
    ),
    "'anew', 'shall', 'all else', 'else than': write 'again', 'must', 'all other', 'other than'": (
        r"\b(?:anew|shall|(?:all|whatever) else|else than)\b"
    ),
}
COMPILED = {why: re.compile(pattern, re.I if "nobody" in pattern else 0) for why, pattern in PATTERNS.items()}
MARKS = re.compile(r'^(?:///?<?|#+|r?""")\s*')


def findings(name: str, text: str) -> list[tuple[int, str]]:
    """(line, what to write instead) in the comments of a file."""
    found, continues = [], False
    for number, (said, line) in enumerate(zip(split(name, text)[0].split("\n"), text.split("\n"), strict=True), 1):
        words = MARKS.sub("", said.strip())
        # A line that continues a sentence may begin with any word.
        begins = not continues or line.strip() != said.strip()
        for why, pattern in COMPILED.items():
            if words and (begins or not pattern.pattern.startswith("^")) and pattern.search(words):
                found.append((number, why))
        continues = bool(words) and line.strip() == said.strip() and not words.endswith((".", ":", "?"))
    return found


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def added_lines(base: str) -> dict[str, set[int]]:
    """The lines of each file that were added since `base`."""
    lines: dict[str, set[int]] = {name: set() for name in git("ls-files", "--others", "--exclude-standard").split("\n")}
    for name in filter(None, lines):
        lines[name] = set(range(1, len(Path(name).read_bytes().splitlines()) + 1))
    name = ""
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", base).split("\n"):
        if line.startswith("+++ "):
            name = line[6:]
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            lines.setdefault(name, set()).update(range(first, first + count))
    return lines


def main() -> int:
    given = [argument for argument in sys.argv[1:] if argument != "--all"]
    branches = [git("merge-base", "HEAD", main) for main in ("origin/main", "main")]
    base = next(filter(None, [*given, *branches]), "HEAD").strip()
    added = None if "--all" in sys.argv else added_lines(base)
    count = 0
    for name in tracked() if added is None else sorted(added):
        if PurePosixPath(name).suffix not in CPP | PYTHON or not Path(name).is_file():
            continue
        for line, why in findings(name, Path(name).read_text()):
            if added is None or line in added[name]:
                print(f"{name}:{line}: {why}")
                count += 1
    print(f"words: {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
