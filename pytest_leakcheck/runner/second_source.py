"""Ask a second source about a suspicion.

For a shared folder: who made its entries. For a device: what its driver counts.
"""

from __future__ import annotations

from pytest_leakcheck.attribution.heap.tensors import bytes_on_device, new_tensors
from pytest_leakcheck.judge.device_witness import DeviceEvidence, hear
from pytest_leakcheck.judge.entry_makers import EntryMakers
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder


def entry_makers(folder: Folder) -> EntryMakers:
    """Summarize who made the entries of a shared folder."""
    private_folder_helps = find_resource(folder.resource).handles == "files"
    return EntryMakers(folder.path, private_folder_helps, folder.count, folder.made_here, folder.set_aside)


def device_evidence(verdict: Verdict, device: Vram) -> DeviceEvidence:
    """Ask the driver of a device about a verdict.

    Live tensors are counted only if the driver cannot see the growth yet, since counting them is slow.
    """
    states = device.states()
    unseen = verdict.outcome in ("leak", "over_budget") and hear(states).says == "unseen"
    return DeviceEvidence(states, bytes_on_device(new_tensors()) if unseen else None)
