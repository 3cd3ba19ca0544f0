"""Runs the parity walk in processes of their own, so that a crash or a hang of one case hides no other."""

import json
import os
import queue
import select
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 60.0  # of one case: far above what any needs, so only a hang reaches it


NOTHING = {"forward": 0, "micro_batches": 0, "training": 0, "seconds": 0.0}


class _Worker:
    """A worker process, started again after it died."""

    def __init__(self, arguments):
        self._process = None
        self._arguments = arguments

    def run(self, key):
        if self._process is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "walk_worker.py"), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        process = self._process
        try:
            process.stdin.write(key.encode() + b"\n")
            process.stdin.flush()
            # One answer a case, so nothing is left in the buffer when select is asked.
            ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
            line = process.stdout.readline() if ready else b""
        except BrokenPipeError:
            ready, line = True, b""
        if line:
            return json.loads(line)
        state = "crash" if ready else "hang"
        self.close()
        detail = f"exit status {process.returncode}" if state == "crash" else f"no answer in {LIMIT_S} s"
        return {"key": key, "state": state, "detail": detail, **NOTHING}

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None


def walk(keys, num_processes=2, arguments=()):
    """Runs the cases; arguments are the workers'. Returns: results by name."""
    pending = queue.SimpleQueue()
    for key in keys:
        pending.put(key)
    results = {}

    def work():
        worker = _Worker(arguments)
        while True:
            try:
                key = pending.get_nowait()
            except queue.Empty:
                break
            results[key] = worker.run(key)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(num_processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {key: results[key] for key in keys}


def main():
    """walk_driver.py [--strided] [--out FILE] [PREFIX...]: runs the cases whose names start so, and prints what is not
    equal. --strided: a training step of each sample on operands that are laid out the other way round in memory."""
    sys.path.insert(0, str(HERE))
    import walk_cases

    arguments = sys.argv[1:]
    strided = arguments[:1] == ["--strided"]
    arguments = arguments[strided:]
    out = None
    if arguments[:1] == ["--out"]:
        out, arguments = arguments[1], arguments[2:]
    keys = [key for key in walk_cases.case_keys() if not arguments or any(key.startswith(a) for a in arguments)]
    results = walk(keys, arguments=["--strided"] if strided else [])
    counts = {}
    for result in results.values():
        counts[result["state"]] = counts.get(result["state"], 0) + 1
        if result["state"] != "equal":
            print(f"{result['state']:10} {result['key']}: {result['detail']}".replace("\n", "\n           "))
    runs = {
        kind: sum(result["training"] for key, result in results.items() if key.startswith(kind))
        for kind in ("op ", "module ")
    }
    print(counts, "training runs that are equal", runs)
    print("seconds", round(sum(result["seconds"] for result in results.values())))
    if out:
        Path(out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
