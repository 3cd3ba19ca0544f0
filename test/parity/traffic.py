"""What an executable's text says of memory: the counts that benchmarks turn into times."""

import re

BYTES = {"f32": 4, "f64": 8, "i64": 8, "bool": 1}


def traffic(text, update=False):
    """How many instructions a micro-batch (or an update) has, and the bytes that they read and write: an operand is
    read, a result or a written operand written."""
    sizes, instructions, total, name = {}, 0, 0, ""
    for line in text.splitlines():
        line = line.strip()
        if slot := re.match(r"\$(\d+) .*?\b(\w+)\[([\d,]*)\].* group=", line):
            count = 1
            for size in filter(None, slot[3].split(",")):
                count *= int(size)
            sizes[slot[1]] = count * BYTES.get(slot[2], 4)
        elif line.startswith("segment"):
            name = line.split()[2]
        elif line.startswith("worker"):
            break
        elif name and name.startswith("update") == update:
            instructions += 1
            total += sum(sizes.get(slot, 0) for slot in re.findall(r"\$(\d+)", line))
    return instructions, total
