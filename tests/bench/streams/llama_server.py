"""llama-server in place of a tree of the bench: it streams from a tiny model with random weights, as it has no null device.

    python -m tests.bench.streams --trees . tests/bench/streams/llama_server.py     with LLAMA_CPP=its folder of programs

What is counted is the processor time of the whole process, less what the same programs take for the model alone at the same batch
(llama-batched-bench). Its output is as of server.py, but for the tokens, which the client counts.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CONTEXT = 2048  # tokens of each stream
WARM_UP_S = 5.0
WARM_UP_STREAM_S = 0.15  # more for each stream: their prompts are evaluated first
BATCHED_TOKENS = 128


def cpu_s(process: int) -> float:
    """Seconds of all threads, user and system."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def model_s(programs: Path, model: str, streams: int) -> float:
    """Seconds of all threads per token of the model alone, `streams` sequences at once."""
    tokens = str(BATCHED_TOKENS)
    command = [str(programs / "llama-batched-bench"), "-m", model, "-c", str(streams * CONTEXT), "-npp", "8", "-npl", str(streams)]
    before = os.times()
    subprocess.run([*command, "-ntg", "1", "-t", "1"], check=True, capture_output=True)
    between = os.times()
    subprocess.run([*command, "-ntg", tokens, "-t", "1"], check=True, capture_output=True)
    after = os.times()
    once = between.children_user + between.children_system - before.children_user - before.children_system
    both = after.children_user + after.children_system - between.children_user - between.children_system
    return (both - once) / (streams * (BATCHED_TOKENS - 1))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--top", type=int)
    arguments = parser.parse_args()
    programs = Path(os.environ.get("LLAMA_CPP", "."))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the server ends with this process
    alone_s = model_s(programs, arguments.model, arguments.streams)
    port = free_port()
    command = [str(programs / "llama-server"), "-m", arguments.model, "--port", str(port), "-np", str(arguments.streams)]
    command += [
        "-c",
        str(arguments.streams * CONTEXT),
        "-t",
        "2",
        "--threads-http",
        str(arguments.streams + 4),
        "--metrics",
        "--no-webui",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url)
            print(url, flush=True)
            time.sleep(WARM_UP_S + arguments.streams * WARM_UP_STREAM_S)
            print(json.dumps({"begin": True}), flush=True)
            began = time.perf_counter(), cpu_s(server.pid)
            time.sleep(max(2.0, arguments.steps / 100))
            wall_s, cpu = time.perf_counter() - began[0], cpu_s(server.pid) - began[1]
            print(json.dumps({"cpu_s": cpu, "wall_s": wall_s, "alone_s": alone_s}), flush=True)
            time.sleep(600)
        finally:
            server.kill()


def wait_until_ready(url: str) -> None:
    for _ in range(300):
        try:
            if urllib.request.urlopen(f"{url}/health").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("llama-server does not start")


if __name__ == "__main__":
    main()
