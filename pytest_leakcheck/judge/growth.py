"""Decide whether readings are `growing`, `flat` or `undecided`, without budget, counter or clock.

**The rule.** Only the part of a run that cannot be warm-up is judged. After n iterations, with
readings x[0] ... x[n], let W3 = [n/2, n] and W12 = [n/8, n/2]; the first eighth is ignored.

*Growing* needs four conditions at once:

* The record test below crosses its threshold on W3.
* The readings also grew over W12.
* The rate over W3 is at least half the rate over W12 (the growth of a cache that warms up decays).
* The rate over the last quarter of W3 is at least a quarter of the rate over W3 (the growth
  continues).

*Flat* means that the lower envelope (the suffix minimum: what was never released) does not rise
over W3, and has not risen for 4.6 times the mean gap between its earlier steps. A leak that occurs
at random at that rate is quiet for that long with probability exp(-4.6) = 1 %. A counter that has
returned to its old minimum is flat as well. A new low in the last quarter of the run makes a series
flat only if earlier falls were similar, or if the counter stays low.

**The record test** is an e-process: a bet on growth, whose wealth measures the evidence. For each
scale w in 1, 2, 4, 8, 16, 32 take the minima of successive blocks of w readings: minima, because
noise is one-sided (blocks wait to be freed, threads wait to end). When the j-th minimum exceeds all
before it, the wealth of this scale is multiplied by 1 - L + L*j, else by 1 - L, with L = 0.9. The
evidence is the highest value that any of the six wealths has reached, times the weight of its
scale.

*Statement.* Assume that, after at most n/2 iterations, the block minima are exchangeable (any
distribution, any spikes, ties allowed). The j-th is then a strict record with conditional
probability at most 1/j (Renyi 1962). So each wealth is bounded by a non-negative martingale of mean
1, and by Ville's inequality ever exceeds 1/a with probability at most a. The weights sum to 1. The
i-th look (see `looks`) requires evidence of i*(i+1)/ALPHA, and the sum of ALPHA/(i*(i+1)) is ALPHA.
So the probability of ever calling such a series growing is at most ALPHA = 0.1 %. No variance is
estimated and nothing is tuned to a machine.

The bound does not cover a cache that fills at a steady rate, because it looks like a leak until it
is full. The horizons of `judge.judge_series` and the search for a container with a maximum size
handle it.

**The detection floor** is the smallest leak that a series would have shown; reports print it with
an ``ok``. A countable (exactly counted) resource has no noise. By chance alone, q iterations
without a rise would exclude, with 99 % confidence, a leak that occurs at random once in q / 4.6
iterations (4.6 is -ln 0.01). But the rule also gives ``ok`` after a few early rises and then a long
rest, and it examines a series several times. It therefore needs more quiet iterations: with
`_FLOOR_FACTORS`, less than 1 % of 6,000 simulated leaks at each length were missed.

For a counter with noise, the floor is found by trial: the smallest leak, rounded down to multiples
of the counter's smallest increase, that the rule calls growing when added to the readings. Another
run has different noise, so the rule must detect the leak in each of several rotations of this run's
increments. It then detected such a leak in 600 of 600 simulated runs that continued until they were
judged, with steady, spiky or one-sided noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import Resource

# The highest probability of a false alarm, over all looks at a series (see `looks`).
ALPHA: Final = 0.001
# L of the record test.
_BET: Final = 0.9
# The block sizes of the record test, each with its weight.
_WEIGHTED_SCALES: Final = ((1, 0.5), (2, 0.2), (4, 0.1), (8, 0.1), (16, 0.05), (32, 0.05))
# -ln(0.01): a leak that occurs at random (Poisson) is quiet for 4.6 mean gaps with a probability of
# 1 %.
MISS: Final = 4.6
# Iterations before the first look, and the ratio between successive looks.
FIRST_LOOK: Final = 10
_LOOK_RATIO: Final = 1.25
# A steady series rises in at least this share of the iterations, and keeps at least this share of
# its earlier rate.
_MIN_STEADY_RATIO: Final = 0.9
# A series that had to end grows if it rises in each of this many iterations: by chance, readings
# come in this order in one of 7! cases, which is less than `ALPHA`. The largest rise is at most
# this multiple of the smallest.
_LEAST_RISES: Final = 6
_MAX_RISE_RATIO: Final = 1.25
# A series that keeps less than this share of its earlier rate slows down.
_MIN_LASTING_RATIO: Final = 0.75
# A sawtooth has at least this many falls: fewer may be chance.
_MIN_FALLS: Final = 4
State: TypeAlias = Literal["growing", "flat", "undecided"]
# In the unit of the resource per iteration (1 TiB for bytes). If the rule does not detect even this
# slope, the series is too short.
_MAX_SLOPE: Final = 1 << 40
# About this many rotations are tried, in addition to the series itself.
_ROTATIONS: Final = 7
# The factor that applies up to a number of quiet iterations: a leak once in (quiet iterations /
# factor) is excluded.
_FLOOR_FACTORS: Final = ((13, 6.0), (30, 8.5), (1 << 40, 10.0))


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one series, by the rule.

    `steps` are the indices at which the lower envelope rose, in W12 and W3. `slope` is the growth
    per iteration over the second half, in the unit of the readings, or 0 if flat; `earlier` is that
    over W12, to distinguish decay from lasting growth. `quiet` is the number of iterations since
    the last step.
    """

    state: State
    slope: float
    earlier: float
    steps: tuple[int, ...]
    quiet: int


def looks(last: int) -> Iterator[int]:
    """Yield the iterations to look at: 10, 13, 17, 22, ... (a quarter more each) and `last`."""
    n = FIRST_LOOK
    while n < last:
        yield n
        n = round(n * _LOOK_RATIO + 0.5)
    yield last


def growth(
    readings: Sequence[int],
    tolerance: float = 0.0,
    first_look: int = FIRST_LOOK,
    *,
    exact: bool = False,
    stopped: bool = False,
) -> Growth:
    """Apply the rule to the readings x[0] ... x[n]; slopes include the tolerated part.

    Args:
        readings: The counter at the end of warm-up and after each iteration; at least 2.
        tolerance: Growth per iteration that is allowed. It is subtracted from the readings as a
            straight line.
        first_look: The least number of iterations for ``growing``. Each look from there on raises
            the threshold.
        exact: The counter has no noise, so a rise in the last reading is a step and not an edge
            effect.
        stopped: No reading can follow, so it is enough that all rises are about equal
            (`_rises_evenly`).
    """
    n = len(readings) - 1
    if n < 4:
        return Growth("undecided", 0.0, 0.0, (), 0)
    levelled = [value - tolerance * i for i, value in enumerate(readings)]
    start, half = max(1, n // 8), n // 2
    early, late = levelled[start : half + 1], levelled[half:]
    slope, earlier = _rate(late), _rate(early)
    steps = _find_envelope_steps(levelled, start, tail=0 if exact else max(1, len(late) // 4))
    quiet = n - (steps[-1] if steps else start)
    state: State = "undecided"
    if _is_flat(levelled, start, steps, quiet, tolerance, exact=exact):
        state = "flat"
    # What has fallen to where it began may do so again, as a list that is cleared now and then,
    # however it grows between.
    elif n >= first_look and min(late) > min(early) and _persists(late, slope, earlier):
        look = sum(1 for at in looks(n) if at >= first_look)
        if _record_evidence(late) >= look * (look + 1) / ALPHA:
            state = "growing"
    if stopped and _rises_evenly(levelled):
        state = "growing"
    shown = slope + tolerance if state != "flat" else 0.0
    return Growth(state, shown, earlier + tolerance, steps, quiet)


def is_steady(readings: Sequence[int]) -> bool:
    """Return whether a noise-free series grows in nearly every iteration at one rate.

    A cache that is filled at random does not.
    """
    # Medians are compared, so that one larger step, such as a doubled table of the interpreter,
    # changes nothing. Measured: numpy's cache of small blocks grows by some 300 bytes per iteration
    # for hundreds of them, at first in 7 of 10.
    n = len(readings) - 1
    steps = [after - before for before, after in pairwise(readings)]
    late, earlier = steps[n // 2 :], steps[n // 8 : n // 2]
    if sum(step > 0 for step in late) < _MIN_STEADY_RATIO * len(late) or not earlier:
        return False
    return upper_median(late) >= _MIN_STEADY_RATIO * upper_median(earlier)


def upper_median(steps: Collection[int]) -> int:
    """Return the median; for an even number of values, the upper of the two in the middle."""
    # Importing `statistics` would take 5 ms.
    return sorted(steps)[len(steps) // 2]


def decays(grown: Growth) -> bool:
    """Return whether a series without noise slows down.

    With noise, the rates are too uncertain at that stage.
    """
    return grown.slope < _MIN_LASTING_RATIO * grown.earlier


def _rises_evenly(levelled: Sequence[float]) -> bool:
    rises = [after - before for before, after in pairwise(levelled)]
    return len(rises) >= _LEAST_RISES and 0 < max(rises) <= _MAX_RISE_RATIO * min(rises)


def _persists(late: Sequence[float], slope: float, earlier: float) -> bool:
    if slope <= 0 or earlier <= 0 or slope < earlier / 2:
        return False
    return _rate(late[-max(4, len(late) // 4) :]) >= slope / 4


def _rate(window: Sequence[float]) -> float:
    """Return the growth per iteration from the first third's minimum to the last third's."""
    third = max(1, len(window) // 3)
    distance = len(window) - third
    return (min(window[-third:]) - min(window[:third])) / distance if distance else 0.0


def _find_envelope_steps(levelled: Sequence[float], start: int, tail: int) -> tuple[int, ...]:
    # The last `tail` readings only contribute to the minima: with noise, a suffix minimum over few
    # readings rises by chance.
    envelope = list(accumulate(reversed(levelled), min))[::-1][start : len(levelled) - tail]
    return tuple(start + i for i in range(1, len(envelope)) if envelope[i] > envelope[i - 1])


def detect_sawtooth(readings: Sequence[int]) -> tuple[int, float] | None:
    """Return the usual rise and the mean fall of a counter that rises and falls like a sawtooth.

    Such a counter rises steadily, and now and then falls by several rises. None without this
    pattern, which handles that only a garbage collector releases cause, and flushed buffers.
    """
    steps = [after - before for before, after in pairwise(readings)]
    (rise, times), *_ = Counter(steps).most_common(1) or [(0, 0)]
    falls = [-step for step in steps if step < 0]
    if (
        rise <= 0
        or 2 * times < len(steps)
        or len(falls) < _MIN_FALLS
        or sum(falls) < 2 * rise * len(falls)
    ):
        return None
    return rise, sum(falls) / len(falls)


def _is_flat(  # noqa: PLR0913 - what was found of the series so far
    levelled: Sequence[float],
    start: int,
    steps: Sequence[int],
    quiet: int,
    tolerance: float,
    *,
    exact: bool,
) -> bool:
    half = (len(levelled) - 1) // 2
    late = levelled[half:]
    quarter = len(late) // 2
    first, last = late[:quarter], late[quarter:]
    if min(last) < min(first) and not _comes_back(
        levelled[start : half + quarter], last, tolerance * len(late)
    ):
        return False
    if quiet >= half and (not steps or quiet >= MISS * steps[-1] / len(steps)):
        return True
    returned = min(last) <= min(first) and min(late) <= min(levelled[start : half + 1])
    # In an exact series, a new maximum may be a step that has just occurred; with noise, it has no
    # meaning.
    return returned and not (exact and max(last) > max(levelled[: half + quarter]))


def _comes_back(before: Sequence[float], last: Sequence[float], slack: float) -> bool:
    """Return whether the last fall lasts, is usual or within `slack`; else it may hide a leak."""
    low = min(last)
    at = next(i for i, value in enumerate(last) if value <= low + slack)
    fall = max(*before, *last[: at + 1]) - low
    if fall <= slack:
        return True
    habit = max(top - value for top, value in zip(accumulate(before, max), before, strict=True))
    held = last[at:]
    return 2 * habit >= fall or (2 * len(held) >= len(last) and 4 * (max(held) - low) <= fall)


def _record_evidence(window: Sequence[float]) -> float:
    best = 0.0
    for scale, weight in _WEIGHTED_SCALES:
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


def detection_floor(
    readings: Sequence[int],
    resource: Resource,
    tolerance: float,
    first_look: int,
    quiet: int | None = None,
) -> float | None:
    """Return the least sustained growth per iteration that would have been called a leak.

    None if the series is too short. The readings were judged clean. `quiet` is the number of
    iterations since the lower envelope last rose, for counts without noise.
    """
    if quiet is not None:
        return (
            resource.grain
            * next(certain for longest, certain in _FLOOR_FACTORS if quiet <= longest)
            / max(1, quiet)
        )
    orders = _rotate_readings(readings)

    def shows(slope: int) -> bool:
        planted = [slope * i // resource.step * resource.step for i in range(len(readings))]
        return all(
            growth(
                [value + leak for value, leak in zip(order, planted, strict=True)],
                tolerance,
                first_look,
            ).state
            == "growing"
            for order in orders
        )

    low, high = 0, 1
    while not shows(high):
        low, high = high, high * 2
        if high > _MAX_SLOPE:
            return None
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return float(high)


def _rotate_readings(readings: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the series and several rotations of its increments, without duplicates."""
    moves = [after - before for before, after in pairwise(readings)]
    step = max(1, len(moves) // (_ROTATIONS + 1))
    starts = range(0, len(moves), step)
    rotated = (accumulate(moves[at:] + moves[:at], initial=readings[0]) for at in starts)
    return list(dict.fromkeys(map(tuple, rotated)))
