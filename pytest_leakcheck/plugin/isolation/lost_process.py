"""Tell that a process of an item was lost, and why: it died, hangs, or did not find the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_leakcheck.config.plan import Effort
from pytest_leakcheck.plugin.isolation.messages import Answer
from pytest_leakcheck.runner.processes import supervisor


@dataclass(frozen=True, slots=True)
class Loss:
    """Why there is no verdict, what the user can do, and the last output and the stacks, as sections of a report."""

    reason: str
    advice: str
    sections: tuple[tuple[str, str], ...]


def explain_loss(answer: Answer, effort: Effort, at: str = "", under: str = "") -> Loss:
    """Explain why a process gave no verdict or recording.

    `at` is the size of an axis, or empty for a repeated test. `under` are its limits as words, or empty if it has none.
    """
    ended = answer.ended
    output = "\n".join(sent.not_collected for sent in answer.messages if sent.not_collected)
    if output:
        reason = "could not be collected in a separate process"
        advice = "its file must be importable in a fresh process; the error is below"
    elif any(sent.not_found for sent in answer.messages):
        reason = "not found again in a separate process"
        advice = (
            "the test's id changes from one collection to the next (a time, an address or a random number in it?): "
            "give its parameters fixed ids, or measure it without isolate"
        )
    else:
        reason = _explain_end(answer, at, effort.max_time) if at else ended.reason + under
        output = ended.said.strip()
        advice = "the last output of the process is below; run the test on its own to see more"
        if ended.hung:
            advice = f"fix the call that hangs, or raise the limit: {effort.advise_time(4 * effort.max_time)}"
    said = (("Captured stderr of the subprocess", output),) if output else ()
    # The stacks of processes that were ended from outside.
    name = "stack of rank {}" if len(answer.stacks) > 1 else "stack of the process"
    stacks = [(name.format(rank), supervisor.excerpt(one)) for rank, one in enumerate(answer.stacks) if one.strip()]
    return Loss(reason, advice, (*said, *stacks))


def _explain_end(answer: Answer, at: str, limit: float) -> str:
    """Explain the end of a run at one size; `limit` is the seconds that each step may take."""
    ended, ranks = answer.ended, len(answer.messages)
    if ended.error:
        return ended.reason
    if ended.hung:
        return f"hung at {at}: {_format_ranks(_stuck_ranks(answer), ranks)}made no progress for {limit:g} s"
    silent = answer.silent_ranks[:1]
    if not silent:
        return f"the test's body did not run at {at}"
    status = answer.failures.get(silent[0], 0 if ranks > 1 else ended.status)
    return f"{_format_ranks(silent, ranks)}{supervisor.describe_exit(status)} at {at}, before the end of the test"


def _format_ranks(numbers: Sequence[int], ranks: int) -> str:
    return f"rank {', '.join(map(str, numbers))} of {ranks} " if ranks > 1 else ""


def _stuck_ranks(answer: Answer) -> list[int]:
    """List the ranks without a recording, or else all; leave out those in a collective operation, unless all are."""
    ranks = range(len(answer.messages))
    stuck = [rank for rank in ranks if not answer.messages[rank].recordings] or list(ranks)
    return [rank for rank in stuck if "/torch/distributed/distributed_c10d.py" not in answer.stacks[rank]] or stuck
