"""What Python allocates and its collector does not track: bytes, text, numbers."""

from __future__ import annotations

import io
import itertools
import sys
from collections import Counter, deque
from decimal import Decimal

from cases.case import drain, kept, leak, numbers

NUMBERS = numbers()
TOKENS: list[bytes] = []
NAMES: dict[int, str] = {}
INTERNED: list[str] = []
SEEN: set[int] = set()
SAMPLES: list[float] = []
PRICES: deque[Decimal] = deque()
LABELS: Counter[str] = Counter()
LOGS: list[str] = []
LINES = {"text": ""}
TRACE = io.StringIO()
SLOW, FAST = itertools.tee(itertools.count(10_000))
SPLIT = [SLOW, FAST]


def tokens_kept() -> None:
    TOKENS.append(b"%07d" % next(NUMBERS))


def names_kept() -> None:
    number = next(NUMBERS)
    NAMES[number] = f"user {number}"


def interned_kept() -> None:
    INTERNED.append(sys.intern(f"column_{next(NUMBERS)}"))


def interned_once() -> None:
    INTERNED[:] = [sys.intern(f"column_{next(NUMBERS) % 8}")]


def seen_kept() -> None:
    SEEN.add(next(NUMBERS))


def samples_kept() -> None:
    SAMPLES.extend(next(NUMBERS) / 7 for _ in range(20))


def prices_without_bound() -> None:
    PRICES.append(Decimal(next(NUMBERS)) / 7)


def prices_with_bound() -> None:
    PRICES.append(Decimal(next(NUMBERS)) / 7)
    while len(PRICES) > 10:
        PRICES.popleft()


def label_per_request() -> None:
    LABELS[f"GET /items/{next(NUMBERS)}"] += 1


def label_per_route() -> None:
    LABELS[f"GET /items/{next(NUMBERS) and '{number}'}"] += 1


def text_extended() -> None:
    LINES["text"] += f"{next(NUMBERS)}: something was done, and this says what\n" * 4


def text_bounded() -> None:
    LINES["text"] = f"{next(NUMBERS)}: something was done, and this says what\n" * 4


def slow_consumer() -> None:
    # What one branch has consumed is kept for the other, for as long as that lags behind.
    for _ in range(57):
        next(SPLIT[1])


def both_consume() -> None:
    for _ in range(57):
        next(SPLIT[1])
        next(SPLIT[0])


def split() -> None:
    SPLIT[:] = itertools.tee(itertools.count(10_000))


def lines_formatted() -> None:
    LOGS.extend(f"{next(NUMBERS)} ok" for _ in range(5))


CASES = (
    kept("tokens_kept", "block", tokens_kept, TOKENS.clear, line="TOKENS.append(", owner=".TOKENS"),
    kept("names_kept", "block", names_kept, NAMES.clear,
         line=('f"user {number}"', "number = next(NUMBERS)"), owner=".NAMES"),
    leak("interned_kept", "block", interned_kept, interned_once, INTERNED.clear,
         line="INTERNED.append(", owner=".INTERNED"),
    kept("seen_kept", "block", seen_kept, SEEN.clear, line="SEEN.add(", owner=".SEEN"),
    kept("samples_kept", "block heap", samples_kept, SAMPLES.clear,
         line="SAMPLES.extend(", owner=".SAMPLES"),
    # From Python 3.14 on, the garbage collector tracks a Decimal.
    leak("prices_without_bound", "block object", prices_without_bound, prices_with_bound, drain(PRICES),
         line="PRICES.append(", owner=".PRICES"),
    leak("label_per_request", "block", label_per_request, label_per_route, LABELS.clear,
         line="LABELS[f", owner=".LABELS"),
    leak("text_extended", "heap", text_extended, text_bounded, lambda: LINES.update(text=""),
         line='LINES["text"] +=', owner=".LINES"),
    leak("slow_consumer", "block object heap", slow_consumer, both_consume, SPLIT.clear,
         setup=split, line="next(SPLIT[1])", owner=".SPLIT"),
    kept("lines_formatted", "block", lines_formatted, LOGS.clear, line="LOGS.extend(", owner=".LOGS"),
)  # fmt: skip
