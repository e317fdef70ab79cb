"""Each way to get the learnt batch size wrong that could be thought of, and a test of it that is red then."""

from __future__ import annotations

from typing import Final

import pytest

from mutant_tables import exit_statuses

pytestmark = pytest.mark.laboratory

PACKAGE: Final = "leakcheck_incidents.batch_size"
PEAK: Final = "peak, capacity = device.peak(), self.limit or device.capacity()"
HIGHEST: Final = "max(self._share(device) for device in self.devices)"

# What is done: the module, what stands there, what is put in its place, and the tests, by file and words, that must be red.
MUTANTS: Final[dict[str, tuple[str, str, str, str]]] = {
    "nothing, in training runs": ("", "", "", "training: with_its_highest or whichever_it_is or before_the_exception"),
    "nothing, in the rest": ("", "", "", "rule: example or initial"),
    "current in place of peak": ("gauge", PEAK, PEAK.replace("peak()", "allocated()"), "training: with_its_highest"),
    "first device only": ("gauge", HIGHEST, "self._share(self.devices[0])", "training: whichever_it_is"),
    "lowest device": ("gauge", HIGHEST, HIGHEST.replace("max", "min"), "training: whichever_it_is"),
    "first device reset": (
        "gauge",
        "for device in self.devices:\n            device.reset_peak()",
        "for device in self.devices[1:]:\n            device.reset_peak()",
        "training: counts_its_own_peak",
    ),
    "share of the whole device": (
        "gauge",
        "self.limit or device.capacity()",
        "device.capacity()",
        "training: may_have",
    ),
    "an unused device learnt from": ("gauge", "highest <= 0", "highest < 0", "training: nothing_was_done_on"),
    "factor applied twice": (
        "choice",
        "int(tuned * factor + _ROUNDING)",
        "int(tuned * factor * factor + _ROUNDING)",
        "rule: gives_them_back",
    ),
    "margin and factor": ("tuning", '"margin": 0.0', '"margin": 0.05', "tuner: fits_and_is_not_derated"),
    "rounding down twice": ("choice", " + _ROUNDING", "", "rule: gives_them_back"),
    "a batch of nothing": ("choice", "max(1, int(", "max(0, int(", "rule: one_sample_at_least"),
    "asked for, not what came of it": (
        "choice",
        "self.batch_size / self.tuned",
        "(self.batch_size + 1) / self.tuned",
        "training: with_its_highest",
    ),
    "fixed is not fixed": (
        "fixed",
        "if not settings.use_adaptive_batch_size_factor:",
        "if False:",
        "training: user_may_fix",
    ),
    "out of memory not recorded": (
        "callback",
        "if is_out_of_memory(exception):",
        "if False:",
        "training: before_the_ex",
    ),
    "every failure recorded": ("callback", "if is_out_of_memory(exception):", "if True:", "training: another_failure"),
    "out of memory as a success": ("callback", "None, oom=True", "1.0", "training: before_the_exception"),
    "short runs dropped": (
        "callback",
        "if self._gauge is not None:\n            try:\n                self._keep",
        "if self._gauge is not None and trainer.global_step > 20:\n            try:\n                self._keep",
        "training: one_step",
    ),
    "silent without a device": (
        "callback",
        "%s; nothing is learned from this training run of %s, which continues",
        "%.0s%.0s",
        "training: without_an_accelerator",
    ),
    "a full store ends the training": (
        "callback",
        "except StoreError as error:",
        "except ZeroDivisionError as error:",
        "training: does_not_end_a_training",
    ),
    "a logger ends the training": (
        "callback",
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        "training: logger_that_fails",
    ),
    "metrics not told": (
        "callback",
        "one.log_metrics(metrics, step=trainer.global_step)",
        "pass",
        "training: logger_that_fails",
    ),
    "peaks not reset": ("callback", "self._gauge.reset()", "pass", "training: counts_its_own_peak"),
    "no bound for the tuner": ("tuning", "_samples(model) - 1", "_MAX_BATCH_SIZE", "tuner: ends_where"),
    "zero from the tuner": ("tuning", "found = 0", "return 0", "tuner: not_one_sample"),
    "causes not looked at": ("exhausted", "one.__cause__ or one.__context__", "None", "training: out_of_memory_of"),
    "a full host": (
        "exhausted",
        '"CUDA out of memory",',
        '"CUDA out of memory", "allocate memory",',
        "training: _of_a_dev",
    ),
    "15 points times momentum": ("rule", "run.factor - OOM_STEP", "run.factor - MOMENTUM * OOM_STEP", "rule: example"),
    "clamp first": ("rule", "unclamped(run))", "unclamped(run) + 0.01)", "rule: example"),
    "a band's end in the other": ("rule", "peak < below", "peak <= below", "rule: bands"),
    "all modes multiplied": ("keys", "            break\n", "", "rule: begin_with"),
    "small before large": ("keys", "0.45", "0.55", "rule: begin_with"),
    "no ceiling": ("policy", "factor = min(aim, safe, below)", "factor = min(aim, below)", "policy: no_step_up"),
    "no bracket": ("policy", "factor = min(aim, safe, below)", "factor = min(aim, safe)", "policy: says_why"),
    "no line": ("policy", "aim = math.exp(-offset / slope)", "aim = newest * 1.02", "policy: any_plant"),
    "never another plant": ("policy", "for newer in known)", "for newer in [])", "policy: different_ones"),
    "noise is another plant": (
        "policy",
        "_CHANGE_THRESHOLD: Final = 0.06",
        "_CHANGE_THRESHOLD: Final = 0.01",
        "policy: noise_is_no",
    ),
    "chord not heeded": ("policy", "or _ran_out_where_it_fits(together)", "", "policy: prove_that_it_fits"),
    "fifty and one": ("records", "KEPT: Final = 50", "KEPT: Final = 51", "store: fifty_runs"),
    "the oldest kept": ("records", "ordered[-KEPT:]", "ordered[:KEPT]", "store: fifty_runs"),
    "a rank's lower peak": (
        "records",
        "max(peaks, default=None), oom",
        "min(peaks, default=None), oom",
        "store: ranks",
    ),
    "failed runs averaged": (
        "records",
        "average_peak=fmean(peaks)",
        "average_peak=sum(peaks) / len(runs)",
        "store: statistics",
    ),
    "converged by any three": ("records", "runs[-IN_A_ROW:])", "runs[:IN_A_ROW])", "store: converged_is"),
    "not locked": ("store", "            lock.acquire()", "            pass", "store: fifty_writers or held"),
    "written in place": (
        "durable",
        'path.with_name(f"{path.name}.new")',
        "path",
        "store: as_a_whole",
    ),
    "no copy": ("store", "                replace_file(self._copy, content)\n", "", "store: truncated or deleted"),
    "broken files overwritten": ("store", "path.rename(aside)", "pass", "store: foreign"),
    "broken files not told": ("store", "%s: %s. It was renamed to %s", "%.0s%.0s%.0s", "store: foreign"),
    "newer versions overwritten": (
        "store",
        "> VERSION:\n        raise TooNew",
        "> 99:\n        raise TooNew",
        "store: newer",
    ),
    "one factor for all devices": (
        "store",
        "(record.key, record.device): record",
        '(record.key, "x"): record',
        "store: each_type",
    ),
}


@pytest.fixture(scope="module")
def statuses() -> dict[str, int]:
    return exit_statuses(MUTANTS, PACKAGE, "test_batch_size")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_red(statuses: dict[str, int], mutant: str) -> None:
    assert statuses[mutant] == (0 if mutant.startswith("nothing") else 1)
