"""Interrupt every command that writes at every change, and print a table: `make faults`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]
os.environ["HF_HUB_OFFLINE"] = "1"

from commands import COMMANDS  # noqa: E402
from processes import serve  # noqa: E402
from trials import Outcome, PairTrials, Trials  # noqa: E402

KINDS = ("kill", "full", "double", "flip")
TRAINING = {"refine", "distill", "finetune"}
SIZES = (3000, 6000, 40_000, 400_000)  # of the largest file, at which the disk is full


def main() -> None:
    """Run the trials named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help="such as 'store build' [default: all]")
    parser.add_argument("--stride", type=int, default=1, help="try every N-th change [default: all]")
    parser.add_argument("--start", type=int, default=0, help="from this change on")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which trials [default: all]")
    parser.add_argument(
        "--pair",
        choices=["ddp", "fsdp"],
        help="run in two processes, and kill the first and the second in turn (refine, distill, finetune)",
    )
    options = parser.parse_args()
    if options.pair and (options.kinds != "kill" or set(options.commands or [""]) - TRAINING):
        parser.error(f"--pair needs --kinds kill, and commands of {', '.join(sorted(TRAINING))}")
    if unknown := set(options.kinds.split(",")) - set(KINDS):
        parser.error(f"unknown kinds {sorted(unknown)}; expected: {', '.join(KINDS)}")
    if unknown := set(options.commands) - set(COMMANDS):
        parser.error(f"unknown commands {sorted(unknown)}; expected: {', '.join(COMMANDS)}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="mtkd-faults-") as folder:
        directory = Path(folder)
        (directory / "printed").mkdir()
        with serve(directory / "printed") as processes:
            for name in options.commands or COMMANDS:
                trials: Any = Trials
                if options.pair:
                    trials = partial(PairTrials, fsdp=options.pair == "fsdp")
                trials = trials(name, processes, directory / "trials")
                points = range(options.start, len(trials.changes), options.stride * trials.command.stride)
                print(f"{name}: {len(trials.changes)} changes", flush=True)
                for kind in options.kinds.split(","):
                    trials.outcome, started = Outcome(differing=list(trials.odd)), time.monotonic()
                    if kind == "kill":
                        for point in points:
                            trials.killed(point)
                            if options.pair:
                                trials.second_killed(point)
                    elif kind == "full":
                        for size in SIZES:
                            trials.disk_full(size)
                    elif kind == "flip":
                        for point in points:
                            trials.flipped(point)
                    else:
                        first = 4 if trials.command.locks else 0  # once it has its lock
                        for point in points[first :: max(1, len(points) // 4)]:
                            trials.doubled(point)
                    found = trials.outcome
                    for what in ("stuck", "differing", "foreign"):
                        for line in getattr(found, what):
                            print(f"  {what}: {line}", flush=True)
                    cost = (time.monotonic() - started) / max(1, found.trials)
                    rows.append(
                        (
                            name,
                            kind,
                            found.trials,
                            len(found.stuck),
                            len(found.differing),
                            len(found.foreign),
                            found.refused,
                            found.verified,
                            f"{cost:.1f}",
                        )
                    )
    print(
        f"\n{'command':38}{'fault':8}{'trials':>8}{'stuck':>8}{'differing':>11}{'foreign':>9}"
        f"{'refused':>9}{'verified':>10}{'s/trial':>9}"
    )
    for row in rows:
        print(
            f"{row[0]:38}{row[1]:8}{row[2]:8}{row[3]:8}{row[4]:11}{row[5]:9}{row[6]:9}{row[7]:10}{row[8]:>9}"
        )
    sys.exit(any(row[3] or row[4] or row[5] for row in rows))


if __name__ == "__main__":
    main()
