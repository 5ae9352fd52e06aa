"""Brings the packages of sources.py into one folder with apt, in a state folder of its own (nothing is
installed).

    python tools/nano/fetch.py FOLDER

Needs a Debian machine (bookworm was used) whose apt sources are reachable; writes FOLDER/*.deb, FOLDER/src/*
and FOLDER/versions.tsv (package, form, version).
"""

import re
import subprocess
import sys
from pathlib import Path

from sources import BIBLE_PROGRAM, SOURCES


def apt_options(state: Path) -> list[str]:
    """Options of an apt that also knows source packages, whatever the machine's own settings are."""
    lists = state / "lists" / "partial"
    lists.mkdir(parents=True, exist_ok=True)
    found = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    origin = next(path for path in found if path.exists())
    text = origin.read_text(encoding="utf-8")
    if origin.suffix == ".sources":
        text = re.sub(r"(?m)^Types:.*$", "Types: deb deb-src", text)
    else:
        text += "\n" + re.sub(r"(?m)^deb ", "deb-src ", text)
    listed = state / origin.name
    listed.write_text(text, encoding="utf-8")
    return [
        "-o",
        f"Dir::State::Lists={lists.parent}",
        "-o",
        f"Dir::Etc::SourceList={listed}",
        "-o",
        "Dir::Etc::SourceParts=-",
        "-o",
        "APT::Sandbox::User=root",
    ]


def fetch_source(options: list[str], package: str, place: Path) -> bool:
    """Downloads the newest version of a source package that the mirror really has: a mirror may list a newer
    security update than it holds. False when it has none."""
    shown = subprocess.run(
        ["apt-cache", *options, "showsrc", package], check=True, capture_output=True, text=True
    )
    versions = re.findall(r"(?m)^Version: (\S+)$", shown.stdout)
    for version in versions:
        get = ["apt-get", *options, "-qq", "source", "--download-only", f"{package}={version}"]
        if subprocess.run(get, cwd=place, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            return True
        for left in place.iterdir():
            left.unlink()
    print(f"{package}: none of the versions {versions} could be fetched", flush=True)
    return False


def fetch(folder: Path) -> None:
    """Downloads what is missing in folder. Raises CalledProcessError when apt fails, RuntimeError (at the
    end) when the mirror lacks source packages."""
    options = apt_options(folder / "apt")
    (folder / "src").mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", *options, "-q", "update"], check=True)
    rows, missing = [], []
    wanted = [(s.package, s.form) for s in SOURCES] + [(BIBLE_PROGRAM, "deb")]
    for number, (package, form) in enumerate(wanted, 1):
        print(f"{number}/{len(wanted)} {package} ({form})", flush=True)
        if form == "deb":
            if not list(folder.glob(f"{package}_*.deb")):
                subprocess.run(["apt-get", *options, "-qq", "download", package], cwd=folder, check=True)
            version = next(folder.glob(f"{package}_*.deb")).name.split("_")[1]
        else:
            place = folder / "src" / package
            if not list(place.glob("*.dsc")):
                place.mkdir(exist_ok=True)
                if not fetch_source(options, package, place):
                    missing.append(package)
                    continue
            version = next(place.glob("*.dsc")).stem.split("_")[1]
        rows.append(f"{package}\t{form}\t{version}\n")
    (folder / "versions.tsv").write_text("".join(rows), encoding="utf-8")
    if missing:
        raise RuntimeError(f"not fetched (take them out of sources.py or try later): {missing}")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
