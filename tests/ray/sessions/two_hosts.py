"""A cluster of two hosts: this one, and network, process, host and mount namespaces with folders of their own.

The arguments are an address of each, and the folders that are empty on the other one. It prints the process of the other
host when both nodes are up. A line of its input kills that host; the end of its input ends both.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import ray

near, far, *folders = sys.argv[1:]
temporary = folders[0]
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--num-cpus=2", "--block"]
LINK = f"lk{os.getpid()}"
# The first process of the other host; it has its own /proc and /dev/shm too.
FAR = f"""
for folder in {" ".join(folders)} /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
hostname far
until ip link show {LINK}f > /dev/null 2>&1; do sleep 0.1; done
ip link set lo up
ip address add {far}/30 dev {LINK}f
ip link set {LINK}f up
until (echo > /dev/tcp/{near}/6399) 2> /dev/null; do sleep 0.2; done
exec "$@"
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True)


quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
head = [*RAY, "--head", f"--node-ip-address={near}", "--port=6399", "--include-dashboard=False"]
join = [*RAY, f"--address={near}:6399", f"--node-ip-address={far}"]
spaces = ["unshare", "--net", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child"]
running = []
try:
    run("ip", "link", "add", f"{LINK}n", "type", "veth", "peer", "name", f"{LINK}f")
    run("ip", "address", "add", f"{near}/30", "dev", f"{LINK}n")
    run("ip", "link", "set", f"{LINK}n", "up")
    other = subprocess.Popen([*spaces, "bash", "-ec", FAR, "far", *join], cwd="/", **quiet)  # type: ignore[call-overload]
    running.append(other)
    while not (below := psutil.Process(other.pid).children()):
        time.sleep(0.05)
    first = below[0].pid
    run("ip", "link", "set", f"{LINK}f", "netns", str(first))
    running.append(subprocess.Popen([*head, f"--temp-dir={temporary}/r"], **quiet))  # type: ignore[call-overload]
    while True:
        with suppress(ConnectionError):
            ray.init(f"{near}:6399", log_to_driver=False, logging_level="ERROR", configure_logging=False)
            break
    while len([node for node in ray.nodes() if node["Alive"]]) < 2:
        time.sleep(0.1)
    ray.shutdown()
    print(first, flush=True)
    for _ in sys.stdin:
        other.kill()
finally:
    for one in running:
        one.terminate()
    for one in running:
        one.wait()
    subprocess.run(["ip", "link", "delete", f"{LINK}n"], check=False)
