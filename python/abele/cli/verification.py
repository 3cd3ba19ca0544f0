"""`abele verify PROGRAM`: runs a Python program, and compares its compiled models with eager PyTorch, bit for bit.

The program does not change. The comparison (`abele.verify`) uses the batches that a model is called with, and runs
before the last of these calls.
"""

import argparse
import contextlib
import os
import runpy
import sys
import weakref

_EQUAL, _DIFFERS, _NOTHING = 0, 1, 2


class _Enough(BaseException):
    """The requested number of models is compared. Not an Exception, because programs catch those."""


class _Watch:
    """Collects the arguments of models' calls, and compares each model when it has enough of them."""

    def __init__(self, most_batches, most_models):
        self.most_batches, self.most_models = most_batches, most_models
        self.pending = {}  # the calls of each model that is not compared yet
        self.compared = weakref.WeakSet()  # weak, because the program may drop a model and wrap its module again
        self.num_compared = 0
        self.status = _NOTHING

    def wraps(self, module):
        """Called before a training model of the module is made: compares and drops the models it had before."""
        for executor in [each for each in self.pending if each._training and each._user_model is module]:
            self.compare(executor)

    def called(self, executor, args, kwargs):
        from abele import structures
        from abele._verify import Call

        if executor in self.compared:
            return
        batches = self.pending.setdefault(executor, [])
        given = (args, kwargs)  # copied below, because the program may write into them later
        copies = [tensor.detach().clone() for tensor in structures.flattenTensorStructure(given)]
        batches.append(Call(*structures.reconstructTensorStructure(given, copies)))
        if len(batches) == self.most_batches:
            self.compare(executor)
            if self.num_compared == self.most_models:
                raise _Enough

    def compare(self, executor):
        import abele

        batches = self.pending.pop(executor)
        self.compared.add(executor)
        self.num_compared += 1
        kind = "training" if executor._training else "inference"
        print(f"abele verify: {type(executor._model).__name__}, {kind}", flush=True)
        try:
            found = abele.verify(executor, *batches)
        except abele.Error as error:
            print(error, flush=True)
            self.status = _DIFFERS
            return
        except Exception:
            self.status = _DIFFERS  # it cannot be compared, but the program may continue
            raise
        print(found, flush=True)
        if not found:
            self.status = _DIFFERS
        elif self.status == _NOTHING:
            self.status = _EQUAL


@contextlib.contextmanager
def _as_main(program, arguments):
    """Sets sys.argv and sys.path as Python does for a program that it starts."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [program, *arguments], [os.path.dirname(os.path.abspath(program)), *path]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="abele verify",
        description=__doc__.split(": ", 1)[1].replace("`", ""),
        epilog="Ends with 0 when all is equal, 1 when something differs, cannot be compared or the program failed, 2 "
        "when no model was called.",
    )
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="calls to compare; default: 2")
    parser.add_argument(
        "--models",
        type=int,
        default=1,
        metavar="N",
        help="end the program after this many models; 0: let it run to its end",
    )
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    chosen = parser.parse_args(arguments)
    if chosen.batches < 1 or chosen.models < 0:
        parser.error("--batches takes a number from 1 on, --models one from 0 on")
    if not os.path.isfile(chosen.program):
        parser.error(f"there is no file {chosen.program}")
    return chosen


def main(arguments=None):
    """The console script. Returns its exit status."""
    chosen = _parse(arguments)
    from abele.executor import Executor

    watch = _Watch(chosen.batches, chosen.models)
    Executor._calls_watch = watch
    status = 0
    try:
        with _as_main(chosen.program, chosen.arguments):
            try:
                runpy.run_path(chosen.program, run_name="__main__")
            except SystemExit as end:
                status = 0 if end.code in (None, 0) else 1
        for executor in list(watch.pending):  # models that the program called less often
            watch.compare(executor)
    except _Enough:
        pass
    finally:
        Executor._calls_watch = None
    if watch.status == _NOTHING:
        print("abele verify: the program called no compiled model", flush=True)
    return watch.status or status


if __name__ == "__main__":
    sys.exit(main())
