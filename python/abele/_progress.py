"""The bar that shows the progress of a compilation. Source: spec environment.md, section 10."""

import sys
import time

_WIDTH = 10


def _clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


class ProgressBar:
    """One bar on stderr, `Graph compilation:  40%|████      | 40/100 [00:02<00:03]`; called by the native compiler.

    Attributes:
        elapsed: seconds from the first report to the last one.
    """

    def __init__(self):
        self._begin = None
        self._is_open = False
        self.elapsed = 0.0

    def __call__(self, progress, total):
        """Shows that `progress` of `total` is done. The bar is complete when they are equal."""
        now = time.perf_counter()
        if self._begin is None:
            self._begin, self._is_open = now, sys.stderr is not None
        self.elapsed = now - self._begin
        if self._is_open:
            self._draw(progress, total)
        if progress == total:
            self.close()

    def close(self):
        """Ends the line, once."""
        if self._is_open:
            self._is_open = False
            print(file=sys.stderr, flush=True)

    def _draw(self, progress, total):
        share = progress / total if total else 1.0
        remaining = _clock(self.elapsed / share - self.elapsed) if share else "?"
        full, empty = self._characters()
        cells = round(share * _WIDTH)
        bar = full * cells + empty * (_WIDTH - cells)
        times = f"[{_clock(self.elapsed)}<{remaining}]"
        print(
            f"\rGraph compilation: {share:4.0%}|{bar}| {progress}/{total} {times}", end="", file=sys.stderr, flush=True
        )

    @staticmethod
    def _characters():
        try:
            "█".encode(getattr(sys.stderr, "encoding", None) or "ascii")
        except UnicodeEncodeError:
            return "#", " "
        return "█", " "
