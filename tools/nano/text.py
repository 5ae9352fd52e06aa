"""Turns files of packages into plain text, and says which texts are worth learning from."""

import html
import re
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

DOCUMENT_CHARS_MIN, DOCUMENT_CHARS_MAX = 400, 600_000
PERMISSIVE = re.compile(
    r"BSD|\bMIT\b|Apache|Permission (is hereby|to use)|Redistribution and use|public domain", re.I
)
COPYLEFT = re.compile(
    r"GNU (Library |Lesser |Affero )?General\s[\s*#]*Public|\b[AL]?GPL-?[v23]|Mozilla Public|MPL-\d"
    r"|Creative\s+Commons|CC-BY-SA|Eclipse Public",
    re.I,
)
GENERATED = re.compile(r"(?i)auto-?generated|do not edit|generated (by|from|file)|machine generated")
ASCII_FOR = str.maketrans(
    {
        "\u2019": "'",
        "\u2018": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2014": "--",
        "\u2013": "-",
        "\u00a0": " ",
        "\u2026": "...",
        "\u2192": "->",
        "\u00ad": None,
        "\u00b6": None,
    }
)


def strip_html(page: str) -> str:
    """The text of a page: blocks on lines of their own, <pre> kept as it is, navigation left out."""
    body = re.search(r"<(main|body)\b.*", page, re.S | re.I)
    page = body.group(0) if body else page
    page = re.sub(r"<(script|style|nav|header|footer|svg|head)\b.*?</\1>", "", page, flags=re.S | re.I)
    page = re.sub(
        r"<div[^>]*class=\"(related|sphinxsidebar|navheader|navfooter|footer|bottomlang|toplang)\b.*?</div>",
        "",
        page,
        flags=re.S,
    )
    page = re.sub(r"<!--.*?-->|&para;|<a class=\"headerlink\".*?</a>", "", page, flags=re.S)
    parts = []
    for part in re.split(r"(<pre\b.*?</pre>)", page, flags=re.S | re.I):
        if part[:4].lower() == "<pre":
            part = "\n" + html.unescape(re.sub(r"<[^>]+>", "", part)) + "\n"
        else:
            part = re.sub(r"\s+", " ", part)
            part = re.sub(
                r"<(p|div|li|tr|h[1-6]|dt|dd|section|table|ul|ol|dl|br)\b[^>]*>", "\n", part, flags=re.I
            )
            part = re.sub(r"</(p|h[1-6]|table|ul|ol|dl)>", "\n", part, flags=re.I)
            part = re.sub(r"</t[dh]>", "  ", part, flags=re.I)
            part = html.unescape(re.sub(r"<[^>]+>", "", part))
            part = re.sub(r"[ \t]*\n[ \t]*", "\n", part)
        parts.append(part)
    return "".join(parts)


def strip_pod(page: str) -> str:
    page = re.sub(r"[A-Z]<<? ?(.*?) ?>?>", r"\1", page)
    return re.sub(r"(?m)^=(head\d|item|over|back|cut|pod|encoding|for|begin|end)\b ?\d*", "", page)


def wordnet_documents(data: str, part: str) -> Iterator[str]:
    """A synset file as small glossaries of about 2,500 characters, each sense in one of three wordings."""
    glossary: list[str] = []
    for number, line in enumerate(data.split("\n")):
        if line.startswith("  ") or "|" not in line:
            continue
        head, gloss = line.split("|", 1)
        fields, gloss = head.split(), gloss.strip()
        words = [fields[4 + 2 * i].replace("_", " ").split("(")[0] for i in range(int(fields[3], 16))]
        synonyms = f" Synonyms: {', '.join(words[1:])}." if len(words) > 1 else ""
        glossary.append(
            (
                f"{', '.join(words)} ({part}): {gloss}",
                f"{words[0][:1].upper() + words[0][1:]}: {gloss}.{synonyms}",
                f'What does "{words[0]}" mean? It means: {gloss}.',
            )[number % 3]
        )
        if sum(map(len, glossary)) > 2500:
            yield "\n".join(glossary)
            glossary = []


def r_string_documents(database: bytes) -> Iterator[str]:
    """The character vectors of an R lazy-load database: each is one novel, one string a line.

    Records are a big-endian length and a zlib stream in R's XDR serialisation, where a string is the type
    word 0x000?0009, its length and its bytes."""
    at = 0
    while at < len(database):
        unpack = zlib.decompressobj()
        data = unpack.decompress(database[at + 4 :])
        at = len(database) - len(unpack.unused_data)
        lines, place = [], 0
        while (found := re.compile(rb"\x00[\x00\x01\x04\x08]\x00\x09").search(data, place)) is not None:
            size = int.from_bytes(data[found.end() : found.end() + 4], "big")
            place = found.end() + 4
            if size < 4096:
                lines.append(data[place : place + size].decode("utf-8", "replace"))
                place += size
        yield "\n".join(lines)


def bible_documents(program: bytes, data: bytes, index: bytes) -> Iterator[str]:
    """The King James Bible book by book, without verse numbers; the package's own program unpacks it."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in (("bible", program), ("bible.data", data), ("bible.data.conc", index)):
            (Path(name) / file).write_bytes(content)
        (Path(name) / "bible").chmod(0o755)
        shown = subprocess.run(
            ["./bible", "-f", "-l", "0"],
            cwd=name,
            check=True,
            capture_output=True,
            text=True,
            input="Genesis1:1-Revelation22:21\n",
        ).stdout
    books: dict[str, list[str]] = {}
    for book, verse in re.findall(r"(?m)^(\w+?)\d+:\d+ (.*)$", shown):
        books.setdefault(book, []).append(verse)
    first = books.pop("Ge")  # the program greets with its first verse
    yield "\n".join(first[1:])
    yield from ("\n".join(verses) for verses in books.values())


def files_of_deb(path: Path) -> Iterator[tuple[str, bytes]]:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE) as pipe:
        with tarfile.open(fileobj=pipe.stdout, mode="r|") as tar:
            for member in tar:
                if member.isfile() and (file := tar.extractfile(member)):
                    yield member.name, file.read()


def files_of_source(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the upstream tarball in folder, without the tarball's own top folder in their names."""
    tarball = next(p for p in sorted(folder.iterdir()) if re.search(r"\.orig\.tar\.(gz|xz|bz2)$", p.name))
    with tarfile.open(tarball) as tar:
        for member in tar:
            if member.isfile() and member.size < 2_000_000 and (file := tar.extractfile(member)):
                yield "/" + member.name.split("/", 1)[-1], file.read()


def tidied(text: str, kind: str) -> str:
    """One way to write line ends, tabs (kept in C), quotes and dashes (prose)."""
    text = text.replace("\r\n", "\n").replace("\f", "\n").replace("\x00", "")
    if kind != "c":
        text = text.replace("\t", "    ")
    if kind == "en":
        text = text.translate(ASCII_FOR)
    text = re.sub(r"[ \t]+\n", "\n", text)
    if kind == "en":
        text = re.sub(r"(?m)^(previous|next|On this page|source|Home   Libraries.*|\|)\n+", "", text)
    return re.sub(r"\n{3,}", "\n\n" if kind == "en" else "\n\n\n", text).strip() + "\n"


def acceptable(text: str, kind: str) -> bool:
    """Whether a text is readable prose or hand-written code, and permissively licensed as far as its head
    says."""
    size, lines, head = len(text), text.split("\n"), text[:4000]
    if not DOCUMENT_CHARS_MIN <= size <= DOCUMENT_CHARS_MAX:
        return False
    if COPYLEFT.search(head) and not (kind != "en" and PERMISSIVE.search(head)):
        return False
    sample = text[:60000]
    if sum(ord(letter) > 126 for letter in sample[:20000]) > 0.02 * min(size, 20000):
        return False
    digits = sum(letter.isdigit() for letter in sample)
    if digits > (0.2 if kind == "en" else 0.12) * len(sample) or sample.count("0x") > len(sample) / 60:
        return False
    if kind == "en":
        return True
    if size / len(lines) > 90 or max(map(len, lines)) > 1500:
        return False
    return not GENERATED.search(text[:1500])
