"""Summarize who made the entries of a shared folder, for the judge."""

from __future__ import annotations

from pytest_leakcheck.judge.entry_makers import EntryMakers
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.folders import Folder


def entry_makers(folder: Folder) -> EntryMakers:
    """Summarize who made the entries of a shared folder."""
    private_folder_helps = find_resource(folder.resource).handles == "files"
    return EntryMakers(folder.path, private_folder_helps, folder.count, folder.made_here, folder.set_aside)
