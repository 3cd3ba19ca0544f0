"""poprun: what processes see, exit codes, output. spec tools.md."""

import os
import pathlib
import signal
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import LIMIT_S, poprun, program, start


def test_what_the_processes_see(tmp_path):
    text = (
        "import os, popdist, poptorch\n"
        "opts = poptorch.Options()\n"
        "text = ' '.join(map(str, (popdist.isPopdistEnvSet(), popdist.getInstanceIndex(), popdist.getNumInstances(), "
        "popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset(), "
        "popdist.getNumIpusPerReplica(), opts.Distributed.processId, opts.Distributed.numProcesses, "
        "os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['EXTRA'], opts._Popart.options['cachePath'])))\n"
        "os.write(1, f'{text}\\n'.encode())\n"
    )
    done = poprun(
        *("-vv", "--num-instances=2", "--num-replicas=4", "--ipus-per-replica=2", "-x", "EXTRA=a b"),
        *(f"--executable-cache-path={tmp_path}", *program(text)),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"True 0 2 2 4 0 2 0 2 0 2 a b {tmp_path}",
        f"True 1 2 2 4 2 2 1 2 1 2 a b {tmp_path}",
    ]
    assert "instance 1 of 2" in done.stderr and "POPDIST_REPLICA_INDEX_OFFSET=2" in done.stderr


@pytest.mark.parametrize(
    ("instances", "replicas", "seen"),
    [
        (4, 2, ["0 4 1 2 0 2 3", "1 4 1 2 0 2 3", "2 4 1 2 1 2 3", "3 4 1 2 1 2 3"]),
        (3, 2, ["0 3 2 2 0 2 4", "1 3 2 2 0 2 4", "2 3 2 2 0 2 4"]),
    ],
)
def test_replicas_in_several_instances(instances, replicas, seen):
    """Index, number, local and total replicas, first one; then replicas and devices that popdist's options have."""
    text = (
        "import os, popdist, popdist.poptorch\n"
        "opts = popdist.poptorch.Options()\n"
        "assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (int(os.environ['RANK']), "
        "popdist.getNumInstances())\n"
        "text = ' '.join(map(str, (popdist.getInstanceIndex(), popdist.getNumInstances(), "
        "popdist.getNumLocalReplicas(), popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset(), "
        "opts.replication_factor, opts.Distributed.devices_per_process)))\n"
        "os.write(1, f'{text}\\n'.encode())\n"
    )
    done = poprun(f"--num-instances={instances}", f"--num-replicas={replicas}", "--ipus-per-replica=6", *program(text))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == seen


def test_popdist_options_of_fewer_devices_than_instances_share():
    text = (
        "import os, popdist.poptorch\n"
        "try:\n    popdist.poptorch.Options(ipus_per_replica=3)\n"
        "except RuntimeError as error:\n    os.write(1, f'{error}\\n'.encode())\n"
    )
    done = poprun("--num-instances=4", "--num-replicas=2", "--ipus-per-replica=4", *program(text))
    assert done.stdout.count("6 devices cannot be shared by 4 instances") == 4, done.stdout + done.stderr


def test_popdist_between_the_processes():
    text = (
        "import popdist, sys\n"
        "popdist.init()\n"
        "wrote = popdist.execute_on_instances({0}, open, sys.argv[1], 'w')\n"
        "assert (wrote is None) == (popdist.getInstanceIndex() == 1)\n"
        "popdist.synchronize()\n"
        "open(sys.argv[1])\n"
        "assert popdist.execute_on_instances(1)(lambda x: x + 1)(1) == (2 if popdist.getInstanceIndex() else None)\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = poprun("--num-instances=2", *program(text), f"{folder}/file")
    assert done.returncode == 0, done.stderr


def test_one_that_fails_ends_the_others():
    text = "import os, signal, sys\nif os.environ['RANK'] == '1': sys.exit(7)\nsignal.pause()\n"
    done = poprun("--num-instances=3", *program(text))
    assert done.returncode == 7 and "instance 1 ended with 7: the others are ended" in done.stderr


def test_one_that_is_killed():
    done = poprun("--num-instances=1", *program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == 137


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "no program"),
        (["--num-instances=2", "--num-replicas=3", "true"], "3 replicas cannot be shared by 2 instances"),
        (["--num-instances=0", "true"], "1 or more"),
        (["--host=elsewhere", "true"], "only this host"),
        (["--unknown", "true"], "no program"),
        (["--update-partition", "true"], "--update-partition: true not in"),
    ],
)
def test_wrong_arguments(arguments, text):
    done = poprun(*arguments)
    assert done.returncode == 2 and (text in done.stderr or "unrecognized" in done.stderr)


@pytest.mark.parametrize(
    "option",
    ["--numa-aware=yes", "--vipu-partition p", "--print-topology=yes", "--print-topology no", "--offline-mode=no"],
)
def test_an_option_without_effect_before_the_program(option):
    done = poprun("--num-instances=1", *option.split(), "echo", "on")
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr


def test_a_program_that_is_not_there():
    done = poprun("--num-instances=2", "/no/such/program")
    assert done.returncode == 127 and "cannot start /no/such/program" in done.stderr


def test_processes_die_with_poprun():
    """Whatever ends it. Who reads its output sees the end of it when the last of them is gone."""
    text = "import os, signal\nos.write(1, f'{os.getpid()}\\n'.encode())\nsignal.pause()\n"
    started = start("--num-instances=2", *program(text))
    pids, alive = [int(started.stdout.readline()) for _ in range(2)], []

    def end():
        alive.extend(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    guard = threading.Timer(LIMIT_S, end)
    guard.start()
    started.kill()
    assert started.stdout.read() == ""
    guard.cancel()
    started.communicate()
    assert not alive


def test_nobody_else_can_connect_to_the_store():
    text = (
        "import os\n"
        "port = f\"{int(os.environ['MASTER_PORT']):04X}\"\n"
        "rows = [line.split() for name in ('tcp', 'tcp6') for line in open(f'/proc/net/{name}')]\n"
        "listening = [row[1] for row in rows if row[1].endswith(':' + port) and row[3] == '0A']\n"
        "os.write(1, f'{listening}\\n'.encode())\n"
    )
    done = poprun("--num-instances=1", *program(text))
    assert done.returncode == 0, done.stderr
    (address,) = eval(done.stdout)
    assert address.startswith("0100007F:"), done.stdout  # 127.0.0.1


def test_too_few_files_for_the_store():
    """poprun says so at once, with or without room for the store's own files. c10d would try for half an hour."""
    for limit in (10, 14, 20):
        done = poprun("--num-instances=2", *program("print('started')"), files=limit)
        assert done.returncode == 1 and "started" not in done.stdout
        assert "too few files for 2 instances" in done.stderr and "ulimit -n" in done.stderr
