"""What set-up decides: which torch it takes, what it refuses, when it has nothing to do."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def make_wheel(folder, name, version, requires=()):
    """An empty wheel with metadata, enough for pip to resolve."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def call(statement, **env):
    """Runs a statement against devtool.setup in its own process."""
    code = f"from devtool import setup; {statement}"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **env}
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=env)


def install_torch(index, target):
    """Chooses a torch from a folder of wheels; pip installs into another folder, and sees nothing else."""
    return call(
        "import sys; setup._install_torch(sys.executable, {'torch': None})",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(index),
        PIP_CONFIG_FILE=os.devnull,
        PIP_TARGET=str(target),
        ABELE_PYTHON_INSTALL="1",
    )


def installed(target):
    return sorted(path.name for path in target.glob("*.dist-info")) if target.exists() else []


def test_refuses_a_torch_that_brings_cuda(tmp_path):
    make_wheel(tmp_path, "torch", "2.13.0", ["nvidia-cublas"])
    make_wheel(tmp_path, "nvidia-cublas", "13.0")
    result = install_torch(tmp_path, tmp_path / "target")
    assert result.returncode == 1
    assert "only a CUDA build of torch==2.13.0" in result.stderr
    assert "nvidia-cublas" in result.stderr
    assert "ABELE_PYTHON" in result.stderr
    assert installed(tmp_path / "target") == []


def test_prefers_the_cpu_build(tmp_path):
    make_wheel(tmp_path, "torch", "2.13.0", ["nvidia-cublas"])
    make_wheel(tmp_path, "torch", "2.13.0+cpu")
    result = install_torch(tmp_path, tmp_path / "target")
    assert result.returncode == 0, result.stderr
    assert installed(tmp_path / "target") == ["torch-2.13.0+cpu.dist-info"]


def test_takes_a_plain_torch_without_cuda(tmp_path):
    make_wheel(tmp_path, "torch", "2.13.0")
    result = install_torch(tmp_path, tmp_path / "target")
    assert result.returncode == 0, result.stderr
    assert installed(tmp_path / "target") == ["torch-2.13.0.dist-info"]


def test_keeps_a_torch_that_is_new_enough():
    result = call("setup._install_torch('/no/such/python', {'torch': '2.11.1+cpu'})")
    assert (result.returncode, result.stdout) == (0, "")


def test_refuses_an_old_torch_of_the_users_own():
    result = call("setup._install_torch('/no/such/python', {'torch': '2.9.0'})")
    assert result.returncode == 1
    assert "/no/such/python has torch 2.9.0; at least 2.11 is needed" in result.stderr


def test_an_interpreter_of_the_users_own_stays_as_it_is_without_a_yes(tmp_path):
    python, site = tmp_path / "python", tmp_path / "site"
    python.write_text(f"#!/bin/sh\necho called with $* >> {tmp_path}/calls\n")
    python.chmod(0o755)
    steps = {
        f"setup.install_pinned({str(python)!r}, 'requirements.txt', {{'installed': {{}}}})": "lacks cmake==",
        f"setup._install_torch({str(python)!r}, {{'torch': None}})": "lacks torch==",
        f"setup._write_pth({str(python)!r}, {{'site': {str(site)!r}}})": f"lacks {site}/abele-dev.pth",
    }
    for statement, lacking in steps.items():
        refused = call(statement, ABELE_PYTHON_INSTALL="")
        assert refused.returncode == 2 and lacking in refused.stdout
        assert f"{python} stays as it is" in refused.stderr and ".venv" in refused.stderr
    optional = call(
        f"print(setup.install_pinned({str(python)!r}, 'requirements-keras.txt', {{'installed': {{}}}}, check=False))"
    )
    assert optional.stdout.endswith("False\n")
    assert not (tmp_path / "calls").exists() and not (site / "abele-dev.pth").exists()
    for statement in steps:
        assert call(statement, ABELE_PYTHON_INSTALL="1").returncode == 0
    assert "pip install" in (tmp_path / "calls").read_text() and (site / "abele-dev.pth").exists()


def programs(folder, **scripts):
    """A folder for PATH with the compiler of this machine, and scripts."""
    for name, text in {"c++": f'exec {shutil.which("c++")} "$@"', **scripts}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_packages_are_known_by_their_headers_and_programs(tmp_path):
    path = programs(tmp_path, have="")
    packages = {"have-it": "have", "lack-it": "lack", "libhave-dev": "vector.h", "liblack-dev": "no/such.hpp"}
    (tmp_path / "vector.h").touch()
    asked = f"setup.PACKAGES = {packages}; print(setup.missing_packages())"
    result = call(asked, PATH=path, CPLUS_INCLUDE_PATH=str(tmp_path))
    assert result.stdout == "['lack-it', 'liblack-dev']\n", result.stderr
    without = call(asked, PATH=path, CXX="no-such-compiler")
    assert without.stdout == "['g++', 'lack-it', 'libhave-dev', 'liblack-dev']\n", without.stderr


def test_missing_packages_without_rights_end_with_the_line_to_run(tmp_path):
    path = programs(tmp_path, **{"apt-get": "exit 1"})
    result = call("import os; os.geteuid = lambda: 1000; setup.install_debian(['lack-it'])", PATH=path)
    assert result.returncode == 2
    assert result.stderr.endswith("sudo apt-get install -y -qq --no-install-recommends lack-it\n")


def test_a_system_without_apt_is_told_what_is_missing_and_may_lack_ccache(tmp_path):
    path = programs(tmp_path)
    result = call("setup.install_debian(['ccache', 'libgtest-dev'])", PATH=path)
    assert result.returncode == 2 and result.stdout == ""
    assert [line.split() for line in result.stderr.splitlines()[1:]] == [["libgtest-dev", "gtest/gtest.h"]]
    assert call("setup.install_debian(['ccache'])", PATH=path).returncode == 0
    assert call("setup.install_debian(['libblis-serial-dev'])", PATH=path).returncode == 0


def test_packages_that_only_save_time_need_no_rights(tmp_path):
    path = programs(tmp_path, **{"apt-get": "exit 1"})
    result = call("import os; os.geteuid = lambda: 1000; setup.install_debian(['libblis-serial-dev'])", PATH=path)
    assert result.returncode == 0, result.stderr


def test_a_pin_is_name_and_version():
    result = call("print(setup.pinned('requirements.txt')['cmake'])")
    assert result.stdout.strip().split(".")[0].isdigit(), result.stderr


def test_a_package_is_known_by_any_spelling_of_its_name(tmp_path):
    info = tmp_path / "some_thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_thing\nVersion: 1.0\n")
    (tmp_path / "pins.txt").write_text("some-thing==1.0\n")
    code = f"from pathlib import Path; setup.ROOT, setup.VENV = Path({str(tmp_path)!r}), Path(sys.executable).parent; "
    code += "setup._pip = lambda *words, **options: print('installs', words); "
    code += "setup.install_pinned(sys.executable, 'pins.txt', setup.probe(sys.executable))"
    done = call(f"import sys; {code}", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT / 'scripts'}")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_optional_packages_that_cannot_be_installed_do_not_stop_the_tests():
    result = call(
        "import sys; setup.setup = lambda: setup.Toolchain(sys.executable, '', {}); "
        "setup.probe = lambda python: {'installed': {}}; "
        "setup.pinned = lambda name: {'no-package-of-that-name': '1.0'}; "
        "print(setup.setup_tests().python == sys.executable)",
        PIP_NO_INDEX="1",
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS=os.devnull,
    )
    assert result.returncode == 0, result.stderr
    assert "the tests of abele.keras are skipped" in result.stdout + result.stderr
    assert result.stdout.strip().endswith("True")


def distributions(site):
    code = "import importlib.metadata as m, sys; d, = m.distributions(name='abele', path=[sys.argv[1]]); "
    code += "print(d.version, [p.value for p in d.entry_points if p.group == 'torch_dynamo_backends'], len(d.files))"
    done = subprocess.run([sys.executable, "-c", code, site], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_metadata_says_version_and_entry_points(tmp_path):
    (tmp_path / "abele-0.0.9.dist-info").mkdir()
    write = f"from pathlib import Path; setup.write_distribution(Path({str(tmp_path)!r}))"
    (tmp_path / "abele-0.0.9.dist-info" / "INSTALLER").write_text("pip\n")
    assert call(write).returncode == 0
    assert installed(tmp_path) == ["abele-0.0.9.dist-info"]  # a wheel's: left alone
    (tmp_path / "abele-0.0.9.dist-info" / "INSTALLER").unlink()
    (tmp_path / "abele-0.0.9.dist-info").rmdir()
    for _ in range(2):  # again, in place of what was there
        assert call(write).returncode == 0
        assert len(installed(tmp_path)) == 1
        assert distributions(tmp_path).endswith(" ['abele.dynamo:backend'] 5")


def test_python_keeps_its_bytecode_below_build(tmp_path):
    (tmp_path / "parsed_once.py").write_text("")
    child = f"env={{**os.environ, **setup._toolchain(sys.executable, '').env, 'PYTHONPATH': {str(tmp_path)!r}}}"
    command = "[sys.executable, '-c', 'import parsed_once']"
    result = call(f"import os, subprocess, sys; subprocess.run({command}, {child}, check=True)")
    assert result.returncode == 0, result.stderr
    kept = list((ROOT / "build" / "bytecode").joinpath(*tmp_path.parts[1:]).glob("parsed_once.*.pyc"))
    assert len(kept) == 1
    kept[0].unlink()
