"""Change what a process has sent, as a hostile one might: seeded, so that a failure can be repeated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

_NAMES = ["toterminal", "_from_json", "passed", "nodeid", "$report_type", "__class__", "x" * 300, "", "schema"]
_TEXTS = [
    "",
    "call",
    "\0",
    "\x1b[2J",
    "\ud800",
    "::stop-commands::x",
    "a" * 5000,
    "evil",
    "evil.Evil",
    "SECRET",
    "fd",
    "nope",
]
_NUMBERS = [0, -1, 1 << 62, -(1 << 63), 1 << 64, 10**400, 1e308, float("nan"), float("inf"), 0.5]


def _value(random: Random) -> Any:
    depth = random.choice((1, 3, 40, 900))
    deep: Any = 0
    for _ in range(depth):
        deep = [deep] if random.random() < 0.5 else {"a": deep}
    return random.choice([None, True, [], {}, [[]], deep, random.choice(_TEXTS), random.choice(_NUMBERS)])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """List all containers with each of their keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _change_value(value: Any, random: Random) -> None:
    holder, key = random.choice(_places(value))
    act = random.randrange(5)
    if act == 0 and isinstance(holder, dict):
        del holder[key]
    elif act == 1 and isinstance(holder, dict):
        holder[random.choice(_NAMES)] = _value(random)
    elif act == 2 and isinstance(holder, list):
        holder *= random.choice((0, 2, 30))
    elif act == 3:
        # Something valid, in a place where it is not expected.
        other, name = random.choice(_places(value))
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = _value(random)


def mutate(text: str, random: Random) -> str:
    """Change some lines of JSON: their values, or the text itself."""
    lines = text.splitlines()
    for _ in range(random.choice((1, 1, 1, 3, 10))):
        at = random.randrange(len(lines))
        if random.random() < 0.8:
            try:
                value = json.loads(lines[at])
                if "reports" in value and random.random() < 0.4 and value["reports"][0].get("leakcheck"):
                    # The finding in a report is JSON in turn.
                    value["reports"][0]["leakcheck"] = mutate(value["reports"][0]["leakcheck"], random)
                else:
                    _change_value(value, random)
                lines[at] = json.dumps(value)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                # An earlier change has left no JSON of this shape.
                continue
        else:
            cut = random.randrange(len(lines[at]) + 1)
            middle = random.choice(["", "\0", "\n", "[" * 100_000, "9" * 5000, "NaN", "\u2028", "{}\n" * 50, lines[0]])
            lines[at] = lines[at][:cut] + middle + lines[at][cut + random.choice((0, 1, 50)) :]
    return "\n".join(lines) + random.choice(("\n", "\n", "\n", ""))


def replace_file(path: Path, random: Random, secret: Path) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    act = random.randrange(6)
    if act == 0:
        os.mkfifo(path)
    elif act == 1:
        path.symlink_to(random.choice(("/dev/zero", "/proc/kmsg", str(secret), "nowhere", str(path))))
    elif act == 2:
        os.link(secret, path)
    elif act == 3:
        path.mkdir()
    elif act == 4:
        path.write_bytes(random.randbytes(200))
    else:
        with path.open("wb") as file:
            # It takes no room on the disk.
            file.truncate(1 << 40)
