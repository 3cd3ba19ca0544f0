"""Python programs that start warm: as forks of a process that has imported torch, and done nothing else.

An import of torch takes two seconds of a processor, and its first optimizer as long again, which a test with several
processes mostly consisted of. `[*warm.python(), SCRIPT, ...]` stands for `[sys.executable, SCRIPT, ...]`, also behind
poprun: a small program that hands its words, environment, folder, standard streams and namespaces to a template, which
forks. The program then stands for the fork: it passes signals on, and ends as the fork ends. If it is killed, so is the
fork. Abele and whatever else the words import are imported by the fork.

Two templates take turns, so that the processes of one training differ in the order of their sets and in the addresses
of libraries, as others do. Words whose environment says how Python or torch load are executed in the usual way. A test
that looks at the process itself, its groups or its start says sys.executable.
"""

import os
import signal
import socket
import sys

_LOADING = ("PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "MALLOC_", "GLIBC_", "TORCH_")
_NOT_LOADING = ("PYTHONPATH", "PYTHONUNBUFFERED")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_NAMESPACES = ("pid", "net", "uts", "mnt")  # the last one changes where the others are found
_NUM_TEMPLATES = 2
_FOLDER = "ABELE_TEST_TEMPLATES"  # the variable that names the folder of the templates' sockets, also to later pytests


def python():
    """First words of a command that runs a Python program."""
    if not os.path.isdir(os.environ.get(_FOLDER, "")):
        os.environ[_FOLDER] = _start_templates()
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), os.environ[_FOLDER]]


def _start_templates():
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for index in range(_NUM_TEMPLATES):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/{index}")
            listener.listen(64)
            template = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, os.path.dirname(__file__), str(listener.fileno())],
                stdin=subprocess.PIPE,  # its end ends the template
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=[listener.fileno()],
            )
        atexit.register(template.wait)
        atexit.register(template.kill)  # comes first: a child of this process may hold the end of the pipe open
    return folder


_TEMPLATE = "import sys; sys.path.insert(0, sys.argv[1]); import warm; sys.path.pop(0); warm.serve(int(sys.argv[2]))"


def _loading(environment):
    return {
        name: value for name, value in environment.items() if name.startswith(_LOADING) and name not in _NOT_LOADING
    }


def _stand_for(folder, words):
    """The program that a test starts: runs the words as a fork of a template."""
    import marshal

    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    template = socket.socket(socket.AF_UNIX)
    template.connect(f"{folder}/{os.getpid() % _NUM_TEMPLATES}")
    request = marshal.dumps((words, dict(os.environ), os.getcwd()))
    namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    socket.send_fds(template, [len(request).to_bytes(8, "big")], [0, 1, 2, *namespaces])
    template.sendall(request)
    answers = template.makefile("rb")
    pid = int(answers.readline())
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.execv(sys.executable, [sys.executable, *words])
    for stream in range(3):
        os.close(stream)  # who reads them hears the end of the fork

    def forward(number, _):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    status = int(answers.readline())
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(listening):
    """A template. Returns in forks only, which have run their words."""
    import gc
    import select

    import torch._dynamo  # noqa: F401  what the first optimizer imports

    listener = socket.socket(fileno=listening)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        _take_ended()
        if 0 in ready:
            os._exit(0)
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            return _fork(connection)
        connection.close()


def _take_ended():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _fork(connection):
    """Returns in the fork that has run the words of a request. This one watches it."""
    import marshal
    import select

    size, files, _, _ = socket.recv_fds(connection, 8, 3 + len(_NAMESPACES))
    request = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    words, environment, folder = marshal.loads(request)
    if _loading(environment) != _loading(os.environ):
        connection.sendall(b"0\n")
        os._exit(0)
    others = [file for file, name in zip(files[3:], _NAMESPACES, strict=True) if _is_other(file, name)]
    if others:
        _enter(others)
    pid = os.fork()  # into the namespace of process numbers
    if pid == 0:
        connection.close()
        return _run(words, environment, folder, files)
    for file in files:
        os.close(file)
    connection.sendall(b"%d\n" % pid)
    ended = os.pidfd_open(pid)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(b"%d\n" % status)
    except BrokenPipeError:
        pass
    os._exit(0)


def _is_other(namespace, name):
    return os.fstat(namespace).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino


def _enter(namespaces):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in namespaces:
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def _run(words, environment, folder, files):
    """Runs words in this fork, as an interpreter that was started with them does."""
    import types

    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    os.closerange(3, max(files) + 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, own, text, name = ["-c", *words[2:]], "", words[1], "<string>"
    else:
        sys.argv, own, name = words, os.path.dirname(os.path.realpath(words[0])), words[0]
        main.__file__ = name
        with open(name, "rb") as file:
            text = file.read()
    sys.path[:0] = [own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        exec(compile(text, name, "exec"), main.__dict__)
    except Exception as error:
        error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    _stand_for(sys.argv[1], sys.argv[2:])
