#!/usr/bin/env python3
"""What each mode of sharing costs: two PyTorch programs on one idle GPU, in MPS servers as the
modes have them, without a cluster. Root, PyTorch, nvidia-cuda-mps-control; changes no setting of
the card, so mode `mps` is in compute mode DEFAULT. Prints a table; takes about two minutes.

For each mode: both programs multiply large matrices; both do small steps (a small product, then
wait for it); one does steps beside the other's large products.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

CONTROL = "nvidia-cuda-mps-control"
LARGE, SMALL = 8192, 256
# Of each phase.
SECONDS = 2.0
PAUSE = 0.3


def program(role):
    """Runs in a process of its own; its line of results is on standard output."""
    import torch

    large, small = (
        torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for n in (LARGE, SMALL)
    )
    for _ in range(3):
        large @ large, small @ small
    torch.cuda.synchronize()
    print("ready", flush=True)
    begin = float(sys.stdin.readline())

    def multiply(end):
        count, start = 0, time.time()
        while time.time() < end:
            for _ in range(4):
                large @ large
            torch.cuda.synchronize()
            count += 4
        return round(count * 2 * LARGE**3 / (time.time() - start) / 1e12)

    def steps(end):
        times, start = [], time.time()
        while time.time() < end:
            step = time.perf_counter()
            small @ small
            torch.cuda.synchronize()
            times.append(time.perf_counter() - step)
        per_second = len(times) / (time.time() - start)
        times.sort()
        of = lambda part: round(times[int(len(times) * part)] * 1e6)
        return {"per second": round(per_second), "median us": of(0.5), "p99 us": of(0.99)}

    seen = {"SMs": torch.cuda.get_device_properties(0).multi_processor_count}
    phases = [
        ("TFLOP/s", multiply),
        ("steps", steps),
        ("beside: TFLOP/s", multiply) if role == "0" else ("beside: steps", steps),
    ]
    for number, (name, run) in enumerate(phases):
        at = begin + number * (SECONDS + PAUSE)
        time.sleep(max(0.0, at - time.time()))
        seen[name] = run(at + SECONDS)
    print(json.dumps(seen), flush=True)


class Server:
    """An MPS daemon of our own; `percent` of the multiprocessors for each client."""

    def __init__(self, card, percent):
        self.folder = tempfile.TemporaryDirectory(prefix="mps")
        self.pipe = self.folder.name
        self.env = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.pipe,
            "CUDA_VISIBLE_DEVICES": card,
        }
        nowhere = subprocess.DEVNULL
        self.daemon = subprocess.Popen(
            [CONTROL, "-f"], env=self.env, stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        while self.tell("get_server_list") != 0:
            time.sleep(0.05)
        self.tell(f"set_default_active_thread_percentage {percent}")

    def tell(self, command):
        told = subprocess.run(
            [CONTROL], input=command + "\n", env=self.env, text=True, capture_output=True
        )
        return told.returncode

    def end(self):
        self.tell("quit -t 1")
        try:
            self.daemon.wait(5)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
        self.folder.cleanup()


def measure(card, pipes):
    programs = []
    for role, pipe in enumerate(pipes):
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": card,
            "CUDA_MPS_PIPE_DIRECTORY": pipe or "/nonexistent",
        }
        words = [sys.executable, __file__, str(role)]
        talk = subprocess.PIPE
        programs.append(subprocess.Popen(words, env=env, stdin=talk, stdout=talk, text=True))
    for one in programs:
        assert one.stdout.readline() == "ready\n"
    begin = time.time() + 0.2
    for one in programs:
        one.stdin.write(f"{begin}\n")
        one.stdin.flush()
    lines = [one.stdout.readline().strip() for one in programs]
    for one in programs:
        one.wait()
    return lines


def main():
    query = ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    print(told.splitlines()[0])
    card = told.split(",")[0]
    for mode, servers, percent in [
        ("alone", [], 100),
        ("time-slicing", [None, None], 100),
        ("mps", [0, 0], 100),
        ("mps, 50 % each", [0, 0], 50),
        ("mps-isolated", [0, 1], 100),
        ("mps-isolated, 50 % each", [0, 1], 50),
        ("time-slicing, again", [None, None], 100),
    ]:
        known = {number for number in servers if number is not None}
        running = {number: Server(card, percent) for number in known}
        pipes = [running[n].pipe if n in running else None for n in servers] or [None]
        try:
            print(mode, *measure(card, pipes), sep="\n    ", flush=True)
        finally:
            for server in running.values():
                server.end()


if __name__ == "__main__":
    program(sys.argv[1]) if len(sys.argv) > 1 else main()
