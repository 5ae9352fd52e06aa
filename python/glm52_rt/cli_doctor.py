"""glm52 doctor: whether this machine and a file are fit for each other, and what to change."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from .cli_options import whole_number
from .cli_terminal import visible
from .doctor import BAD, Finding, file_findings, machine_findings


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="check the machine and a file, say what to change",
                                 description="Checks this machine, this build and, if named, a model's file and its "
                                 "disk. Exit code 1 if something does not work.")  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="a GGUF, a shard of one, or a folder that holds one")
    add("--identity", action="store_true", help="print the file's identity, a digest of its content")
    add("--expect", metavar="HEX", help="the identity that the file must have")
    add("--context", type=whole_number(1, 2**32 - 1), default=4096, metavar="N", help="positions to plan for")
    add("--no-disk", dest="disk", action="store_false", help="do not read from the disk")
    add("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in _findings(args):
        findings.append(finding)
        if not args.json:
            print("\n".join(lines(finding)), flush=True)
    works = all(finding.state != BAD for finding in findings)
    if args.json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}))
    return 0 if works else 1


def _findings(args: argparse.Namespace) -> Any:
    yield from machine_findings()
    if args.model is not None:
        yield from file_findings(args.model, args.identity, args.expect, args.context, args.disk)


def lines(finding: Finding) -> list[str]:
    """A finding for people."""
    found = [f"{finding.state:4}  {finding.name:18} {visible(finding.text)}"]
    if finding.do:
        found.append(f"{'':24} -> {visible(finding.do)}")
    return found
