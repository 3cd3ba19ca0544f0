"""Times of single calls."""

import time


def least(call, calls):
    """Microseconds of the fastest of so many calls, after one that does not count."""
    call()
    best = float("inf")
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best * 1e6
