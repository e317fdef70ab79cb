"""A series of readings in, its growth out: `growing`, `flat` or `undecided`. Numbers only, no resource, no budget.

**The rule.** Only the part of a run that cannot be warm-up is judged. After n iterations, with readings x[0] ... x[n],
let W3 = [n/2, n] and W12 = [n/8, n/2]; the first eighth is never looked at.

*Growing* needs four things at once: the record test below crosses its threshold on W3; W12 grew too; the rate over W3
is at least half the rate over W12 (a cache that warms up decays); and the rate over the last quarter of W3 is at least
a quarter of the rate over W3 (the growth is still alive).

*Flat* means that the lower envelope (the suffix minimum: what was never given back) stands still over W3, and has stood
still for 4.6 times the mean gap between its earlier steps: a leak that strikes at random at that rate stays quiet for
so long with probability exp(-4.6) = 1 %. A counter that came back to its old minimum is flat as well, where it has done so
before, or stays there.

**The record test** is an e-process. For each scale w in 1, 2, 4, 8, 16, 32 take the minima of successive blocks of w
readings. When the j-th minimum exceeds all before it, the wealth is multiplied by 1 - L + L*j, else by 1 - L, with
L = 0.9; the evidence is the largest of the six wealths, each times its weight.

*Statement.* If, after at most n/2 iterations, the block minima are exchangeable (any distribution, any spikes, ties
allowed), the j-th is a strict record with conditional probability at most 1/j (Renyi 1962). Each wealth is then bounded
by a non-negative martingale of mean 1, and by Ville's inequality exceeds 1/a with probability at most a. The weights
sum to 1, and the i-th look asks for i*(i+1)/ALPHA; the sum of ALPHA/(i*(i+1)) is ALPHA. So the probability of ever
calling such a series growing is at most ALPHA = 0.1 %. No variance is estimated and nothing is tuned to a machine.

Minima are used since noise in these counters is one-sided: blocks wait to be freed, threads wait to end.

The bound says nothing of a cache that fills at a steady pace, which counts like a leak until it is full. Two things
outside this module answer that: the horizons of `judge.judge_series`, and the search for a bounded owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal, TypeAlias

ALPHA: Final = 0.001
_BET: Final = 0.9
_SCALES: Final = ((1, 0.5), (2, 0.2), (4, 0.1), (8, 0.1), (16, 0.05), (32, 0.05))
# -ln(0.01): a Poisson leak is silent for 4.6 mean gaps with a chance of 1 %.
MISS: Final = 4.6
FIRST_LOOK: Final = 10
_STEP: Final = 1.25
_STEADY: Final = 0.9
_ALIVE: Final = 0.75
# Fewer may be chance.
_FALLS: Final = 4

State: TypeAlias = Literal["growing", "flat", "undecided"]


@dataclass(frozen=True, slots=True)
class Growth:
    """What the rule says of one series.

    Attributes:
        state: ``growing``, ``flat`` or ``undecided``.
        slope: Growth per iteration over the second half, in the unit of the readings (0 where it is flat).
        earlier: Growth per iteration over W12, to tell decay from persistence.
        steps: Indices at which the lower envelope rose, W12 and W3 together.
        quiet: Number of iterations since the last of these steps.
    """

    state: State
    slope: float
    earlier: float
    steps: tuple[int, ...]
    quiet: int


def looks(last: int) -> Iterator[int]:
    """The iterations after which a verdict is sought: 10, 13, 17, 22, ... growing by a quarter, and `last` itself."""
    n = FIRST_LOOK
    while n < last:
        yield n
        n = round(n * _STEP + 0.5)
    yield last


def growth(
    readings: Sequence[int], tolerance: float = 0.0, first_look: int = FIRST_LOOK, *, exact: bool = False
) -> Growth:
    """Apply the rule to the readings x[0] ... x[n].

    Args:
        readings: The counter at the end of warm-up and after each iteration; at least 2.
        tolerance: Growth per iteration that is not held against the series. It is subtracted as a line.
        first_look: The first number of iterations after which ``growing`` may be said; later looks pay for it.
        exact: The counter has no noise, so a rise in the very last reading is a step and no edge effect.

    Returns:
        The growth; slopes include the tolerated part.
    """
    n = len(readings) - 1
    if n < 4:
        return Growth("undecided", 0.0, 0.0, (), 0)
    levelled = [value - tolerance * i for i, value in enumerate(readings)]
    start, half = max(1, n // 8), n // 2
    early, late = levelled[start : half + 1], levelled[half:]
    slope, earlier = _rate(late), _rate(early)
    steps = _steps(levelled, start, tail=0 if exact else max(1, len(late) // 4))
    quiet = _quiet(n, start, steps)
    state: State = "undecided"
    if _is_flat(levelled, start, steps, tolerance, exact=exact):
        state = "flat"
    elif n >= first_look and _persists(late, slope, earlier):
        look = sum(1 for at in looks(n) if at >= first_look)
        if _evidence(late) >= look * (look + 1) / ALPHA:
            state = "growing"
    shown = slope + tolerance if state != "flat" else 0.0
    return Growth(state, shown, earlier + tolerance, steps, quiet)


def is_steady(readings: Sequence[int]) -> bool:
    """Whether a series without noise grows in nearly every iteration and at one rate, as no cache that fills at random.

    The rate is the median step of the later half and of the three eighths before it, so that a single larger step, an
    interpreter's own table that was doubled, changes nothing. Measured: numpy's cache of small blocks takes some 300 bytes
    per iteration for hundreds of iterations, at first in seven of ten of them.
    """
    n = len(readings) - 1
    steps = [after - before for before, after in pairwise(readings)]
    late, earlier = steps[n // 2 :], steps[n // 8 : n // 2]
    if sum(step > 0 for step in late) < _STEADY * len(late) or not earlier:
        return False
    return middle(late) >= _STEADY * middle(earlier)


def middle(steps: Sequence[int]) -> int:
    """The median; of an even number the upper one of the two."""
    # `statistics` would take 5 ms to load.
    return sorted(steps)[len(steps) // 2]


def decays(grown: Growth) -> bool:
    """Whether a series without noise slows down; where there is noise, a rate is too uncertain to tell that so early."""
    return grown.slope < _ALIVE * grown.earlier


def _persists(late: Sequence[float], slope: float, earlier: float) -> bool:
    if slope <= 0 or earlier <= 0 or slope < earlier / 2:
        return False
    return _rate(late[-max(4, len(late) // 4) :]) >= slope / 4


def _rate(window: Sequence[float]) -> float:
    """Minimum of the last third less minimum of the first, per iteration between their beginnings."""
    third = max(1, len(window) // 3)
    distance = len(window) - third
    return (min(window[-third:]) - min(window[:third])) / distance if distance else 0.0


def _steps(levelled: Sequence[float], start: int, tail: int) -> tuple[int, ...]:
    # The last `tail` readings are witnesses only: where there is noise, a suffix minimum over few of them rises by itself.
    envelope = list(accumulate(reversed(levelled), min))[::-1][start : len(levelled) - tail]
    return tuple(start + i for i in range(1, len(envelope)) if envelope[i] > envelope[i - 1])


def _quiet(n: int, start: int, steps: Sequence[int]) -> int:
    return n - (steps[-1] if steps else start)


def let_go(readings: Sequence[int]) -> tuple[int, float] | None:
    """Whether a counter rises steadily and comes down now and then, by several iterations' worth at once.

    That is how things look that nobody closes and a garbage collector finds, and how a buffer looks that is emptied.

    Returns:
        What it rises by in most iterations, and how far it falls on the average; None where it does neither.
    """
    steps = [after - before for before, after in pairwise(readings)]
    (rise, times), *_ = Counter(steps).most_common(1) or [(0, 0)]
    falls = [-step for step in steps if step < 0]
    if rise <= 0 or 2 * times < len(steps) or len(falls) < _FALLS or sum(falls) < 2 * rise * len(falls):
        return None
    return rise, sum(falls) / len(falls)


def _is_flat(levelled: Sequence[float], start: int, steps: Sequence[int], tolerance: float, *, exact: bool) -> bool:
    n = len(levelled) - 1
    half, quiet = n // 2, _quiet(n, start, steps)
    late = levelled[half:]
    middle = len(late) // 2
    first, last = late[:middle], late[middle:]
    if min(last) < min(first) and not _comes_back(levelled[start : half + middle], last, tolerance * len(late)):
        return False
    if quiet >= half and (not steps or quiet >= MISS * steps[-1] / len(steps)):
        return True
    returned = min(last) <= min(first) and min(late) <= min(levelled[start : half + 1])
    # A height that was never reached before may be a step that has just come; where there is noise, it may be anything.
    return returned and not (exact and max(last) > max(levelled[: half + middle]))


def _comes_back(before: Sequence[float], last: Sequence[float], slack: float) -> bool:
    """Whether a low in the last readings is a habit, or has held: something large that is freed once hides a leak.

    A fall within the slack, what is tolerated over that time, hides nothing that would have been called a leak.
    """
    low = min(last)
    at = next(i for i, value in enumerate(last) if value <= low + slack)
    fall = max(*before, *last[: at + 1]) - low
    if fall <= slack:
        return True
    habit = max(top - value for top, value in zip(accumulate(before, max), before, strict=True))
    held = last[at:]
    return 2 * habit >= fall or (2 * len(held) >= len(last) and 4 * (max(held) - low) <= fall)


def _evidence(window: Sequence[float]) -> float:
    best = 0.0
    for scale, weight in _SCALES:
        minima = [min(window[at : at + scale]) for at in range(0, len(window) - scale + 1, scale)]
        if len(minima) < 2:
            break
        wealth, peak, record = 1.0, 1.0, minima[0]
        for rank, value in enumerate(minima[1:], start=2):
            if value > record:
                wealth, record = wealth * (1 - _BET + _BET * rank), value
            else:
                wealth *= 1 - _BET
            peak = max(peak, wealth)
        best = max(best, weight * peak)
    return best
