"""Clean workloads with the standard library only: parsing, files, caches, threads and processes."""

from __future__ import annotations

import asyncio
import decimal
import functools
import io
import json
import logging
import pickle
import re
import sqlite3
import string
import subprocess
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

from workloads import Step, workload


def _word(chance: Random, most: int = 12) -> str:
    return "".join(chance.choices(string.ascii_letters, k=chance.randint(1, most)))


@workload()
def json_round_trip(chance: Random, folder: Path) -> Step:
    """Encode and decode nested JSON values."""

    def nested(depth: int) -> object:
        if depth == 0:
            return chance.choice((chance.random(), chance.randrange(10**9), _word(chance), None, True))
        if chance.random() < 0.5:
            return [nested(depth - 1) for _ in range(chance.randint(1, 6))]
        return {_word(chance): nested(depth - 1) for _ in range(chance.randint(1, 6))}

    def step() -> None:
        value = {"all": [nested(3) for _ in range(20)]}
        assert json.loads(json.dumps(value)) == value

    return step


@workload()
def sqlite_file(chance: Random, folder: Path) -> Step:
    """Create, fill, query and delete a SQLite database file."""
    path = folder / "table.sqlite"

    def step() -> None:
        connection = sqlite3.connect(path)
        try:
            connection.execute("create table word (number integer primary key, text text)")
            rows = [(number, _word(chance, 60)) for number in range(chance.randint(10, 300))]
            connection.executemany("insert into word values (?, ?)", rows)
            connection.commit()
            query = "select count(*), max(length(text)) from word where text like ?"
            connection.execute(query, (f"%{chance.choice(string.ascii_letters)}%",)).fetchall()
        finally:
            connection.close()
            path.unlink()

    return step


@workload()
def thread_pool(chance: Random, folder: Path) -> Step:
    """Sort lists in a pool of threads."""

    def step() -> None:
        chunks = [[chance.random() for _ in range(chance.randint(10, 1000))] for _ in range(8)]
        with ThreadPoolExecutor(chance.randint(2, 4)) as pool:
            assert sum(pool.map(len, pool.map(sorted, chunks))) == sum(map(len, chunks))

    return step


@workload()
def logging_handlers(chance: Random, folder: Path) -> Step:
    """Attach handlers to a logger, log to them, and remove them."""
    path = folder / "work.log"

    def step() -> None:
        logger = logging.getLogger("census")
        logger.setLevel(logging.INFO)
        handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler(io.StringIO())]
        for handler in handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
        for number in range(chance.randint(5, 50)):
            logger.info("%d %s", number, _word(chance, 80))
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        path.unlink()

    return step


@workload()
def regex_churn(chance: Random, folder: Path) -> Step:
    """Search with new regular expressions in each step."""
    text = " ".join(_word(chance) for _ in range(300))
    # `re` caches 512 patterns. At 20 patterns per step its cache is full after about 26 steps; at 1 per step, after
    # about 512.
    patterns = chance.randint(1, 20)

    def step() -> None:
        for _ in range(patterns):
            re.findall(rf"\b{_word(chance, 2)}[{_word(chance, 4)}]+(\w{{{chance.randint(1, 9)}}}|$)", text)

    return step


@workload()
def bounded_cache(chance: Random, folder: Path) -> Step:
    """Fill an `lru_cache`, which evicts entries once it is full."""

    @functools.lru_cache(maxsize=chance.choice((64, 256, 1024)))
    def squares(n: int) -> tuple[int, ...]:
        return tuple(i * i for i in range(n))

    def step() -> None:
        for _ in range(20):
            squares(chance.randrange(2000))

    return step


@workload()
def numbers_and_pickles(chance: Random, folder: Path) -> Step:
    """Compute with decimals, and pickle the results."""

    def step() -> None:
        with decimal.localcontext(decimal.Context(prec=chance.randint(10, 60))):
            sums = [decimal.Decimal(chance.random()).sqrt() for _ in range(chance.randint(10, 200))]
        value = {_word(chance): (number, chance.getrandbits(200), _word(chance).encode()) for number in sums}
        assert pickle.loads(pickle.dumps(value, protocol=chance.randint(2, 5))) == value

    return step


@workload()
def xml_tree(chance: Random, folder: Path) -> Step:
    """Build, serialize and parse an XML tree."""

    def step() -> None:
        root = ET.Element("root")
        for _ in range(chance.randint(10, 200)):
            child = ET.SubElement(root, chance.choice(("word", "part")), name=_word(chance))
            child.text = _word(chance, 80)
        text = ET.tostring(root)
        assert len(ET.fromstring(text).findall("./word")) <= len(root)
        assert sum(1 for _ in ET.iterparse(io.BytesIO(text))) == len(root) + 1

    return step


@workload()
def zip_in_temporary_folder(chance: Random, folder: Path) -> Step:
    """Write, extract and test a zip file in a temporary folder."""

    def step() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name, "parts.zip")
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for number in range(chance.randint(1, 10)):
                    archive.writestr(f"part{number}", chance.randbytes(chance.randint(0, 20_000)))
            with zipfile.ZipFile(path) as archive:
                archive.extractall(name)
                assert archive.testzip() is None

    return step


@workload()
def subprocess_pipe(chance: Random, folder: Path) -> Step:
    """Send data through a subprocess."""

    def step() -> None:
        sent = chance.randbytes(chance.randint(0, 100_000))
        done = subprocess.run(["cat"], input=sent, stdout=subprocess.PIPE, check=True)
        assert done.stdout == sent

    return step


@workload()
def asyncio_tasks(chance: Random, folder: Path) -> Step:
    """Run tasks that pass data through a queue."""

    async def pass_on(queue: asyncio.Queue[bytes], number: int) -> int:
        for _ in range(number):
            await queue.put(chance.randbytes(chance.randint(1, 1000)))
            await asyncio.sleep(0)
            await queue.get()
        return number

    async def together() -> int:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        return sum(await asyncio.gather(*(pass_on(queue, chance.randint(1, 10)) for _ in range(10))))

    return lambda: asyncio.run(together())
