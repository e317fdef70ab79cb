"""Write torch's memory snapshot of a test that leaks memory of a CUDA device, for the viewer at pytorch.org/memory_viz.

torch records its history only while the cause is searched for. The file lies beside the JSON report or the page.
"""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.finding import RED, Finding
from pytest_leakcheck.model.resources import DEVICE_MEMORY
from pytest_leakcheck.plugin.stash import PROCESS
from pytest_leakcheck.runner.repetition import Repetition


def folder_of_reports(config: pytest.Config, settings: Settings) -> str:
    """Return the folder of the page or of the JSON report; empty if the session writes neither."""
    if PROCESS in config.stash:
        child: Any = config.pluginmanager.getplugin("leakcheck-child")
        return str(child.reports)
    given = settings.html or settings.json
    return str(Path(config.invocation_params.dir, given).parent) if given else ""


class DeviceSnapshot:
    """The snapshot of one test. Use it once: `follow` after each iteration, `take`, and `stop` in any case."""

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._folder = folder_of_reports(item.config, settings)
        # torch's module of the recording that runs; None if none does.
        self._recording: Any = None
        self._failed = ""

    def follow(self, repetition: Repetition) -> None:
        """Record the allocations from now on, if the cause of growth on a device is searched for."""
        if repetition.searched != DEVICE_MEMORY or not self._folder or self._recording is not None or self._failed:
            return
        try:
            memory = _find_memory()
            # A program that records its own history keeps it. Older releases of torch cannot tell.
            if memory is not None and not getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", bool)():
                # Each entry takes a few KiB of the host's memory.
                memory._record_memory_history(max_entries=100_000, stacks="python")
                self._recording = memory
        except Exception as error:  # noqa: BLE001 - the snapshot is of less value than the verdict
            self._failed = describe_error(error)

    def take(self, finding: Finding) -> Finding:
        """Write the snapshot if the finding is red for memory on a CUDA device. Return the finding with its path."""
        verdict = finding.verdict
        if not self._folder or verdict.resource != DEVICE_MEMORY or verdict.outcome not in RED:
            return finding
        try:
            memory = _find_memory()
            if memory is None:
                return finding
            name = re.sub(r"[^\w.-]", "_", finding.fingerprint, flags=re.ASCII)
            path = Path(self._folder, f"{name}.snapshot.pickle")
            path.write_bytes(pickle.dumps(memory._snapshot()))
        except Exception as error:  # noqa: BLE001 - as above
            return replace(finding, snapshot_error=describe_error(error))
        return replace(finding, snapshot=str(path), snapshot_error=self._failed)

    def stop(self) -> None:
        """End the recording, if there is one."""
        memory, self._recording = self._recording, None
        if memory is not None:
            try:
                memory._record_memory_history(None)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed = describe_error(error)


def _find_memory() -> Any:
    """Return `torch.cuda.memory`; None if this process does not use a CUDA device."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.memory if torch is not None and torch.cuda.is_initialized() else None
