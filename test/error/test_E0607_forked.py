"""E0607: a model that was compiled before this process was forked off. More: test/client/test_forks.py."""

import multiprocessing

import poptorch
import torch


def _call(queue, executor, x):
    try:
        executor(x)
    except poptorch.Error as error:
        queue.put((error.code, str(error)))


def test_a_call_in_a_forked_child():
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    x = torch.ones(1, 3)
    executor(x)
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    child = fork.Process(target=_call, args=(queue, executor, x))
    child.start()
    code, text = queue.get()
    child.join()
    assert code == "E0607" and "spawn" in text
    assert child.exitcode == 0
    executor(x)
