"""Results of a benchmark as JSON with machine and commit, and functions that run in processes of their own."""

import json
import multiprocessing
from datetime import UTC, datetime
from pathlib import Path

from .machine import RESULTS, describe


def begin(**parts):
    """Results that have these parts first."""
    return {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), **parts}


def save(result, path, name):
    """Writes results to this path; None: bench/results/<name>-<date>.json. Returns: the path."""
    path = path or RESULTS / f"{name}-{result['date'][:10]}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def write(result, path, name):
    """Writes results, and says where."""
    print(f"written to {save(result, path, name)}")


def write_if_asked(args, **results):
    """Writes results and the options they were measured with to the file of --json, if there is one."""
    if args.json:
        options = {name: value for name, value in vars(args).items() if name != "json"}
        text = json.dumps({"machine": describe(), "options": options, **results}, indent=1)
        Path(args.json).write_text(text + "\n")


def run_apart(function, *args):
    """Runs function(pipe, *args) in a process of its own. Returns: what it sends."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=function, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__}: the process died") from None
    process.join()
    return result
