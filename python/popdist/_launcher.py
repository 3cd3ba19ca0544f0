"""poprun: starts the processes of a program and ends with their exit code.

    poprun --num-instances=2 --num-replicas=4 python train.py
    poprun --num-instances=2 --num-replicas=1 --ipus-per-replica=4 python train.py

The processes find each other through torch.distributed's store, which this process holds: on a port that is free, for
this host alone. They see the variables of torchrun, of Open MPI and of PopDist. When one fails, the others are ended;
when this process is killed, they are.
"""

import argparse
import ctypes
import datetime
import os
import shlex
import signal
import socket
import subprocess
import sys

_END = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_S = 10  # from SIGTERM to SIGKILL
_ADDRESS = "127.0.0.1"
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def _parser():
    parser = argparse.ArgumentParser(prog="poprun", description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--num-instances", "-n", type=int, default=1, help="processes")
    add("--num-replicas", type=int, default=None, help="replicas of all processes; default: one each")
    add("--ipus-per-replica", type=int, default=1, help="devices of a replica")
    add("--executable-cache-path", default=None, help="folder of compiled programs, shared by the processes")
    add("--mpi-local-args", default="", help='as in Open MPI; "-x NAME=VALUE" sets a variable, others have no effect')
    add("--mpi-global-args", default="", help="the same")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="a variable of the processes")
    add("--offline-mode", default="no", choices=("yes", "no", "on", "off"), help="no effect: there is no partition")
    for name in ("--vipu-partition", "--vipu-server-host", "--vipu-server-timeout", "--numa-aware", "--host-subnet"):
        add(name, default=None, help="no effect: there is no partition")
    for name in ("--update-partition", "--reset-partition", "--remove-partition", "--print-topology"):
        add(name, default=None, nargs="?", const="yes", help="no effect: there is no partition")
    add("--host", "--hosts", "-H", default=None, help="hosts; only this one is possible")
    add("--only-output-from-instance", type=int, default=None, help="the others' output is dropped")
    add("--tag-output", action="store_true", help="no effect")
    add("-v", "--verbose", dest="verbose", action="count", default=0, help="says what is started; twice: its variables")
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _parse(arguments):
    parser = _parser()
    options = parser.parse_args(arguments)
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not options.program:
        parser.error("no program: poprun [options] python train.py")
    if options.num_replicas is None:
        options.num_replicas = options.num_instances
    if options.num_instances < 1 or options.num_replicas < 1 or options.ipus_per_replica < 1:
        parser.error("--num-instances, --num-replicas and --ipus-per-replica are 1 or more")
    if options.num_instances % options.num_replicas == 0:  # a replica lies in one or several instances
        if options.ipus_per_replica % (options.num_instances // options.num_replicas):
            devices = options.ipus_per_replica * options.num_replicas
            parser.error(f"{devices} devices cannot be shared by {options.num_instances} instances")
    elif options.num_replicas % options.num_instances:
        parser.error(f"{options.num_replicas} replicas cannot be shared by {options.num_instances} instances")
    if options.host and any(name not in ("localhost", "127.0.0.1") for name in options.host.split(",")):
        parser.error("--host: only this host; start one torchrun on each of several")
    options.variables = dict(_exported(options, parser))
    return options


def _exported(options, parser):
    """(name, value) of -x here and in the arguments for MPI."""
    texts = list(options.exports)
    for arguments in (options.mpi_local_args, options.mpi_global_args):
        words = shlex.split(arguments)
        texts += [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-x"]
    for text in texts:
        name, given, value = text.partition("=")
        if not name:
            parser.error(f"-x {text!r}: expected NAME=VALUE")
        if given or name in os.environ:
            yield name, value if given else os.environ[name]


def _environmentOf(index, options, address, port):
    """What process `index` sees."""
    local = max(1, options.num_replicas // options.num_instances)
    first = index * options.num_replicas // options.num_instances  # one replica may lie in several instances
    count, rank = str(options.num_instances), str(index)
    inherited = {**os.environ, **options.variables}
    variables = {
        **inherited,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is here already
        "GLOO_SOCKET_IFNAME": inherited.get("GLOO_SOCKET_IFNAME", "lo"),  # the transfers, too, stay on this host
        "POPDIST_NUM_TOTAL_REPLICAS": str(options.num_replicas),
        "POPDIST_NUM_LOCAL_REPLICAS": str(local),
        "POPDIST_REPLICA_INDEX_OFFSET": str(first),
        "POPDIST_NUM_IPUS_PER_REPLICA": str(options.ipus_per_replica),
    }
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        variables[name] = rank
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        variables[name] = count
    if options.executable_cache_path:
        variables["POPTORCH_CACHE_DIR"] = options.executable_cache_path
    return variables


def _openStore(dist):
    """The store of the processes, which all are on this host: nobody else can connect."""
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        listener.listen(socket.SOMAXCONN)
        timeout = datetime.timedelta(minutes=30)
        port = listener.getsockname()[1]
        return dist.TCPStore(
            _ADDRESS, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def _dyingWith(parent):
    """What a new process does first: it dies when its parent does, however that ends.

    Args:
        parent: the parent's process id.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # here: the new process shall do as little as can be

    def prepare():
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the request
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _say(text):
    print(f"poprun: {text}", file=sys.stderr, flush=True)


def _codeOf(status):
    """Exit code as a shell has it."""
    return 128 - status if status < 0 else status


class _Processes:
    """The running processes: index by process id. Only wait() removes one: until then the id is no other program's."""

    def __init__(self):
        self.running = {}

    def endAll(self, number=signal.SIGTERM):
        """Signals those that still run."""
        for pid in list(self.running):
            os.kill(pid, number)

    def waitForAll(self):
        """Returns the first failure's exit code, 0 if there is none."""
        code = 0
        while self.running:
            pid, status = os.wait()
            index = self.running.pop(pid, None)
            failed = _codeOf(os.waitstatus_to_exitcode(status))
            if index is None or not failed or code:
                continue
            code = failed
            if self.running:
                _say(f"instance {index} ended with {failed}: the others are ended")
            self.endAll()
            signal.signal(signal.SIGALRM, lambda *_: self.endAll(signal.SIGKILL))
            signal.alarm(_PATIENCE_S)
        signal.alarm(0)
        return code


def run(options):
    """Starts the processes and waits for them. Returns the exit code of the first that failed, else 0."""
    import torch.distributed as dist

    store = _openStore(dist)
    dies_with_us = _dyingWith(os.getpid())
    processes, started = _Processes(), []  # what is started is held: subprocess looks after what nobody holds
    for number in _END:
        signal.signal(number, lambda received, _: processes.endAll(received))
    for index in range(options.num_instances):
        variables = _environmentOf(index, options, _ADDRESS, store.port)
        silent = options.only_output_from_instance not in (None, index)
        if options.verbose:
            _say(f"instance {index} of {options.num_instances}: {shlex.join(options.program)}")
        if options.verbose > 1:
            changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
            _say(" ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items())))
        output = subprocess.DEVNULL if silent else None
        try:
            started.append(
                subprocess.Popen(options.program, env=variables, stdout=output, stderr=output, preexec_fn=dies_with_us)
            )
            processes.running[started[-1].pid] = index
        except OSError as error:
            _say(f"cannot start {options.program[0]}: {error.strerror}")
            processes.endAll()
            processes.waitForAll()
            return 127
    return processes.waitForAll()


def main(arguments=None):
    """The console script."""
    sys.exit(run(_parse(arguments)))


if __name__ == "__main__":
    main()
