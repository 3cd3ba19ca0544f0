"""Runs what a page shows, so that its figures are those of today's code.

    scripts/run_page.py [--check] docs/scale.md

Every block of the kind ```console is lines "$ abele-sim ..." or "$ scripts/...", each followed by what it prints. They
run in the root of the tree, programs of Abele's own from ABELE_BUILD_DIR (build/dev); the page is rewritten, or with
--check compared.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def output_of(command: str) -> str:
    """command: of a known program, without the shell's own language."""
    words = shlex.split(command)
    build = Path(os.environ.get("ABELE_BUILD_DIR", "build/dev"))
    if words[0].startswith("abele-"):
        words[0] = str(ROOT / build / "tools" / words[0])
    elif words[0].startswith("scripts/"):
        words = [sys.executable, *words]
    else:
        sys.exit(f"{words[0]}: no program of a page")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stderr}")
    return done.stdout


def run_again(page: str) -> str:
    def run_block(match):
        commands = [line[2:] for line in match[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"$ {command}\n{output_of(command)}" for command in commands) + "```"

    return BLOCK.sub(run_block, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="say what is stale, write nothing")
    given = parser.parse_args()
    stale = []
    for path in given.pages:
        before = path.read_text()
        after = run_again(before)
        if after != before:
            stale.append(str(path))
            if not given.check:
                path.write_text(after)
    if stale and given.check:
        sys.exit(f"not what its commands print: {', '.join(stale)}\n  try: scripts/run_page.py {' '.join(stale)}")


if __name__ == "__main__":
    main()
