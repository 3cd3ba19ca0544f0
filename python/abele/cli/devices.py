"""gc-info and gc-inventory: the devices that programs are told of, in the form of Graphcore's tools.

They are emulated, each some cores of this machine; ABELE_EMULATED_DEVICES says how many. Sensors are N/A; load and
owners are those of the programs that run. Source: spec tools.md.
"""

import argparse
import collections
import json
import platform
import socket
import sys

from abele import _devices

_PARTITION = "p1"
_PER_MACHINE = 4  # IPU# counts down within a machine, while ids count up
_CLOCK_MHZ = 1330  # of cycle counts (cycleCount)


def _ipuNumber(device):
    return _PER_MACHINE - 1 - device % _PER_MACHINE


def _uses():
    """By device: (load, model) of every model that has it."""
    uses = collections.defaultdict(list)
    for model in _devices.attached():
        for device in model["devices"]:
            uses[device["id"]].append((device["load"], model))
    return uses


def _user(members, uses):
    """Who has a device, by the names of gc-info. Several processes may: they are listed."""
    owners = {model["pid"]: model for device in members for _, model in uses[device]}
    if not owners:
        return {}
    return {
        "user executable": ", ".join(model["command"] for model in owners.values()),
        "user name": ", ".join(dict.fromkeys(model["user"] for model in owners.values())),
        "user process id": ", ".join(str(pid) for pid in owners),
    }


def _utilisation(members, uses):
    """Models that share a device take turns on it."""
    loads = [min(1.0, sum(load for load, _ in uses[device])) for device in members]
    return f"{100 * sum(loads) / len(loads):.2f}%"


def _attributes(number, members, uses):
    """Attributes of a device, by the names of gc-info."""
    alone = len(members) == 1
    return {
        "id": str(number),
        "target": "CPU (emulated)" if alone else "Multi IPU",
        "average board temp": "N/A",
        "average die temp": "N/A",
        "board ipu index": str(_ipuNumber(members[0])) if alone else "N/A",
        "board type": "emulated",
        "clock": f"{_CLOCK_MHZ}MHz",
        "ipu architecture": "ipu2",
        "ipu power": "N/A",
        "ipu utilisation": _utilisation(members, uses),
        "ipuof host": "127.0.0.1",
        "ipuof partition id": _PARTITION,
        "number of IPUs": str(len(members)),
        "number of replicas": "1",
        "processor": platform.processor() or platform.machine(),
        "host": socket.gethostname(),
        "remote buffers": "1",
        "remote buffers supported": "1",
        **_user(members, uses),
    }


def _line(prefix, word, device, target=""):
    return f"{prefix} {word}: [{device}], {target}IPU-M host: [127.0.0.1], IPU#: [{_ipuNumber(device)}]"


def _list(groups):
    print(f"Graphcore device listing:\n\nPartition: {_PARTITION} [active]")
    for number, members in enumerate(groups):
        if len(members) == 1:
            print(_line("-+-", "Id", number, "target: [CPU (emulated)], "))
            continue
        print(f"-+- Id: [{number}], target: [Multi IPU]")
        for place, device in enumerate(members):
            print(_line(f" |--- Id: [{place}],", "DNC Id", device))


def _parser(name, text):
    return argparse.ArgumentParser(prog=name, description=text, allow_abbrev=False)


def info(arguments=None):
    """The console script gc-info. Returns its exit status."""
    parser = _parser("gc-info", "Devices that programs are told of: emulated, each some cores of this machine.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-l", "--list-devices", action="store_true", help="all devices, also those of several IPUs")
    what.add_argument("-i", "--device-info", action="store_true", help="the attributes of one device, with -d")
    what.add_argument("--ipu-count", action="store_true", help="IPUs of a device, with -d; all without")
    what.add_argument("--ipu-arch", action="store_true", help="architecture whose programs run")
    what.add_argument("--tile-clock-speed", action="store_true", help="MHz of cycle counts")
    parser.add_argument("-d", "--device-id", type=int, metavar="ID", help="the device")
    parser.add_argument("--all-partitions", action="store_true", help="no effect: there is one")
    options = parser.parse_args(arguments)
    groups = _devices.deviceGroups()
    if options.device_id is not None and not 0 <= options.device_id < len(groups):
        print(f"gc-info: there is no device {options.device_id}; ids are 0 to {len(groups) - 1}", file=sys.stderr)
        return 1
    if options.device_info and options.device_id is None:
        parser.error("--device-info needs -d ID")
    if options.list_devices:
        _list(groups)
    elif options.device_info:
        print("Device Info:")
        for name, value in _attributes(options.device_id, groups[options.device_id], _uses()).items():
            print(f"  {name}: {value}")
    elif options.ipu_count:
        print(_devices.numDevices() if options.device_id is None else len(groups[options.device_id]))
    else:
        print("ipu2" if options.ipu_arch else f"{_CLOCK_MHZ}MHz")
    return 0


def inventory(arguments=None):
    """The console script gc-inventory. Returns its exit status."""
    parser = _parser("gc-inventory", "Attributes of all devices that programs are told of; they are emulated.")
    parser.add_argument("-j", "--json", action="store_true", help="as JSON")
    options = parser.parse_args(arguments)
    uses = _uses()
    devices = [_attributes(number, members, uses) for number, members in enumerate(_devices.deviceGroups())]
    if options.json:
        print(json.dumps({"devices": devices}, indent=2))
        return 0
    for device in devices:
        print("\n".join(f"{name}: {value}" for name, value in device.items()), end="\n\n")
    return 0
