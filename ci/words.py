"""Find words that readers stumble over, in code and documentation. Exit status 1 if there are any.

Each key of `WORDS` occurred often in an earlier state of this project, and has a plainer replacement. The search covers
names, comments, docstrings and messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SEARCHED: Final = (
    "pytest_leakcheck/**/*.py",
    "tests/**/*.py",
    "fixtures/**/*.py",
    "fixtures/**/*.md",
    "ci/*",
    "docs/*.md",
    "*.md",
)

# Key: the words to find, as a regular expression for whole words. Value: what to write instead.
WORDS: Final = {
    r"anew": "again",
    r"dear(er|est)?": "expensive",
    r"mend(ed|s|ing)?": "fix, fixed",
    r"nobody|somebody|whoever": "name who: no process, the caller",
    r"for want of": "because ... ran out",
    r"what (becomes|became|has become) of": "what happens to",
    r"(near|far) side": "parent process, child process",
    r"let go of|lets go of": "release",
    r"trainings": "training runs",
    r"thereby|therein|whereof": "delete it, or split the sentence",
    r"(is|are|was) (said|told) (of|that|to)": "reports, says who",
    r"as it must|as they must": "as expected",
    r"in a process of its own|in processes of their own": "in a separate process, in separate processes",
    r"so (many|much) (per|for each|of each)": "N per, an amount per",
}
_FOUND: Final = re.compile("|".join(rf"(?P<w{at}>\b(?:{word})\b)" for at, word in enumerate(WORDS)), re.IGNORECASE)
_ADVICE: Final = tuple(WORDS.values())


def search(path: Path) -> Iterator[str]:
    """Yield a message for each occurrence of the `WORDS` in a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for match in _FOUND.finditer(line):
            advice = _ADVICE[int(str(match.lastgroup)[1:])]
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {advice!r}"


def main() -> int:
    """Search all files and print the messages; return 1 if there are any."""
    own = Path(__file__).resolve()
    files = sorted({path for pattern in SEARCHED for path in ROOT.glob(pattern) if path.is_file()} - {own})
    found = [line for path in files for line in search(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
