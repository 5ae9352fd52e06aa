"""Builds the corpus and the tokenizer of glm52-nano from the packages that fetch.py brought.

    python tools/nano/build_corpus.py PACKAGES WORK collect    -> WORK/documents.pkl, WORK/held_out.pkl,
    counts python tools/nano/build_corpus.py PACKAGES WORK tokenize   -> WORK/tokenizer.json, valid.bin,
    valid.json python tools/nano/build_corpus.py PACKAGES WORK pack       -> WORK/corpus-N.txt.bz2 (to carry
    elsewhere) python tools/nano/build_corpus.py PACKAGES WORK all
    python tools/nano/build_corpus.py PACKAGES WORK sample FILE   -> held-out text for perplexity figures
    python tools/nano/build_corpus.py PACKAGES WORK table         -> the model card's table

The same packages give the same files: documents are ordered by name, every random order has a fixed seed.

Held out are whole documents: one in a hundred by the hash of its name, and the books of HELD_OUT_BOOKS. They
are never cut into the training text, and a block of text that stands in a held-out document too (a licence
head, a copied paragraph) is removed from the training text.
"""

import bz2
import hashlib
import json
import pickle
import random
import re
import sys
from itertools import zip_longest
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import chat
import text as texts
import vocabulary
from sources import BIBLE_PROGRAM, CLASS_CAP_MB, SOURCES, Source

PROCESSES = 2
HELD_OUT_ONE_IN = 100
HELD_OUT_BOOKS = (
    "r-cran-janeaustenr/book2",
    "bible-kjv-text/book7",
    "bible-kjv-text/book31",
    "bible-kjv-text/book58",
)
HELD_OUT_CHARS_MAX = 40_000  # of one document, so that no book is half of the validation text
PIECE_CHARS_MAX = 40_000  # longer training documents are cut at a blank line, and the pieces mixed
# Public domain, so that the sample can be passed on without notices.
SAMPLE_FROM = (
    "sqlite3",
    "sqlite3-doc",
    "bible-kjv-text",
    "r-cran-janeaustenr",
    "libtomcrypt",
    "python3-docutils",
)
SAMPLE_CHARS, SAMPLE_DOCUMENT_CHARS = 190_000, 16_000
FIRST_PART = 0.74  # share of the documents in corpus-0; each part travels alone
STREAM = 8_000_000  # bytes of text in one bz2 stream
TOKENIZER_CHARS = 32_000_000  # the merges are learned on this much text


class Document(NamedTuple):
    name: str  # package/path
    kind: str  # "c", "py" or "en"
    text: str


def fingerprint(data: str) -> int:
    return int.from_bytes(hashlib.blake2b(data.encode(), digest_size=8).digest(), "little")


def held_out(name: str) -> bool:
    return fingerprint(name) % HELD_OUT_ONE_IN == 0 or name in HELD_OUT_BOOKS


# ---- packages -> documents ----


def books_of(source: Source, packages: Path) -> list[Document]:
    """The prose that does not lie in one file per document."""
    files = dict(texts.files_of_deb(next(packages.glob(f"{source.package}_*.deb"))))
    if source.package == "bible-kjv-text":
        programs = dict(texts.files_of_deb(next(packages.glob(f"{BIBLE_PROGRAM}_*.deb"))))
        found = texts.bible_documents(
            programs["./usr/bin/bible"], files["./usr/lib/bible.data"], files["./usr/lib/bible.data.conc"]
        )
    elif source.package == "r-cran-janeaustenr":
        found = texts.r_string_documents(next(v for k, v in files.items() if k.endswith("data/Rdata.rdb")))
    else:
        found = (
            page
            for name, data in sorted(files.items())
            if source.class_of(name)
            for page in texts.wordnet_documents(data.decode(), name.rsplit(".", 1)[-1])
        )
    return [
        Document(f"{source.package}/book{number}", "en", texts.tidied(page, "en"))
        for number, page in enumerate(found)
    ]


def documents_of(source: Source, packages: Path) -> list[Document]:
    """All acceptable documents of a source, at most cap_mb of them, held-out ones first."""
    if source.package in ("bible-kjv-text", "r-cran-janeaustenr", "wordnet-base"):
        found = books_of(source, packages)
    else:
        found = []
        files = (
            texts.files_of_deb(next(packages.glob(f"{source.package}_*.deb")))
            if source.form == "deb"
            else texts.files_of_source(packages / "src" / source.package)
        )
        for path, data in files:
            kind = source.class_of(path)
            if kind is None or len(data) > 2_000_000:
                continue
            try:
                page = data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if re.search(r"\.html?(\.en)?$", path):
                page = texts.strip_html(page)
            elif path.endswith(".pod"):
                page = texts.strip_pod(page)
            page = texts.tidied(page, kind)
            if texts.acceptable(page, kind):
                found.append(Document(f"{source.package}/{path.lstrip('./')}", kind, page))
    found.sort(key=lambda document: (not held_out(document.name), fingerprint(document.name)))
    kept, size = [], 0
    for document in found:
        if size < source.cap_mb * 1e6:
            kept.append(document)
            size += len(document.text)
    return kept


def without_repeats(documents: list[Document]) -> list[Document]:
    """Drops each block (text between blank lines) of 160 characters and more that came before: any block of a
    held-out document, the second copy of a long block, the third copy of a shorter one."""
    seen: dict[int, int] = {}
    result = []
    for document in documents:
        kept = []
        for block in document.text.split("\n\n"):
            if len(block) >= 160:
                mark = fingerprint(block.strip())
                count = seen.get(mark, 0)
                seen[mark] = count + (99 if held_out(document.name) else 1)
                if count >= 2 or (count >= 1 and len(block) > 600):
                    continue
            kept.append(block)
        page = "\n\n".join(kept).strip() + "\n"
        if len(page) >= texts.DOCUMENT_CHARS_MIN and len(page) > 0.3 * len(document.text):
            result.append(document._replace(text=page))
    return result


def pieces(document: Document) -> list[Document]:
    """A long document as pieces that end at blank lines where possible."""
    page, result = document.text, []
    while len(page) > PIECE_CHARS_MAX:
        cut = page.rfind("\n\n", 0, PIECE_CHARS_MAX)
        cut = cut if cut > 5000 else PIECE_CHARS_MAX
        result.append(document._replace(text=page[:cut] + "\n"))
        page = page[cut:].lstrip("\n")
    return [*result, document._replace(text=page)] if len(page) >= texts.DOCUMENT_CHARS_MIN else result


def _documents_of(job: tuple[Source, Path]) -> list[Document]:
    return documents_of(*job)


def collect(packages: Path, work: Path) -> None:
    with Pool(PROCESSES) as pool:
        lists = pool.map(_documents_of, [(source, packages) for source in SOURCES], chunksize=1)
    found = [document for documents in lists for document in documents]
    found.sort(key=lambda document: (not held_out(document.name), fingerprint(document.name)))
    found = without_repeats(found)
    valid = [d._replace(text=d.text[:HELD_OUT_CHARS_MAX]) for d in found if held_out(d.name)]
    train, size, used = [], dict.fromkeys(CLASS_CAP_MB, 0), {}
    for document in found[sum(held_out(d.name) for d in found) :]:
        if size[document.kind] < CLASS_CAP_MB[document.kind] * 1e6:
            size[document.kind] += len(document.text)
            package = document.name.split("/")[0]
            used[package] = used.get(package, 0) + len(document.text)
            train += pieces(document)
    random.Random(2).shuffle(train)
    (work / "documents.pkl").write_bytes(pickle.dumps([tuple(d) for d in train]))
    (work / "held_out.pkl").write_bytes(pickle.dumps([tuple(d) for d in valid]))
    (work / "used.json").write_text(
        json.dumps({k: round(v / 1e6, 2) for k, v in sorted(used.items())}, indent=1)
    )
    print(
        "training",
        len(train),
        {k: round(v / 1e6, 1) for k, v in size.items()},
        "MB; held out",
        len(valid),
        sum(len(d.text) for d in valid) / 1e6,
        "MB",
        flush=True,
    )


# ---- tokenizer, held-out ids, packed texts ----


def tokenizer_sample(documents: list[Document]) -> list[str]:
    sample, size = [], 0
    for document in documents:
        sample.append(document.text[:6000])
        size += len(sample[-1])
        if size > TOKENIZER_CHARS:
            break
    return sample + [" ".join(turn for _, turn in talk) for talk in chat.generate(8000, seed=77)]


def tokenize(work: Path) -> None:
    """Learns the merges, encodes the held-out documents."""
    place = work / "tokenizer.json"
    if not place.exists():
        documents = [Document(*row) for row in pickle.loads((work / "documents.pkl").read_bytes())]
        vocabulary.train(tokenizer_sample(documents)).save(str(place))
        (work / "tokenizer_config.json").write_text(json.dumps(vocabulary.TOKENIZER_CONFIG, indent=1))
    valid = [
        vocabulary.without_specials(row[2]) for row in pickle.loads((work / "held_out.pkl").read_bytes())
    ]
    ids = vocabulary.encode_documents(str(place), valid)
    ids.tofile(work / "valid.bin")
    size = sum(len(page.encode()) for page in valid)
    (work / "valid.json").write_text(json.dumps({"bytes_per_token": size / len(ids)}))
    print(f"held out {len(valid)} documents, {len(ids)} tokens, {size} bytes", flush=True)


def pack(work: Path) -> None:
    """corpus-N.txt.bz2: the texts, separated by NUL. Encoding them is left to the machine that trains."""
    documents = [row[2] for row in pickle.loads((work / "documents.pkl").read_bytes())]
    first = round(len(documents) * FIRST_PART)
    for number, part in enumerate((documents[:first], documents[first:])):
        data = "\0".join(part).encode()
        cuts = [data[at : at + STREAM] for at in range(0, len(data), STREAM)]
        with Pool(PROCESSES) as pool:
            streams = pool.map(bz2.compress, cuts, chunksize=1)
        (work / f"corpus-{number}.txt.bz2").write_bytes(b"".join(streams))
        print(
            f"part {number}: {len(part)} documents, {len(data)} bytes packed to {sum(map(len, streams))}",
            flush=True,
        )


def sample(work: Path, path: Path) -> None:
    """A small held-out text of prose, C and Python in turns, for perplexity figures."""
    documents = [Document(*row) for row in pickle.loads((work / "held_out.pkl").read_bytes())]
    chosen = [d for d in documents if d.name.split("/")[0] in SAMPLE_FROM]
    chosen.sort(key=lambda document: fingerprint(document.text))
    by_kind = [[d for d in chosen if d.kind == kind] for kind in ("en", "c", "py")]
    pages, size = [], 0
    for document in (d for three in zip_longest(*by_kind) for d in three if d is not None):
        page = document.text[:SAMPLE_DOCUMENT_CHARS].rsplit("\n", 1)[0]
        if size + len(page) < SAMPLE_CHARS:
            pages.append(page)
            size += len(page)
            print(f"{document.name}: {len(page)} characters")
    path.write_text(vocabulary.without_specials("\n\n\n".join(pages)) + "\n", encoding="utf-8")


def table(packages: Path, work: Path) -> None:
    """The sources as a Markdown table for the model card."""
    used = json.loads((work / "used.json").read_text())
    rows = [row.split("\t") for row in (packages / "versions.tsv").read_text().splitlines()]
    versions = {package: version for package, _, version in rows}
    print("| package | kind | version | licence | read | MB |\n| --- | --- | --- | --- | --- | --- |")
    for s in SOURCES:
        kind = "source" if s.form == "src" else "binary"
        print(
            f"| {s.package} | {kind} | {versions[s.package].replace('%3a', ':')} | {s.licence} | "
            f"{', '.join(s.classes.split())} | {used.get(s.package, 0.0):.1f} |"
        )


def main() -> None:
    packages, work, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    work.mkdir(parents=True, exist_ok=True)
    if what in ("collect", "all"):
        collect(packages, work)
    if what in ("tokenize", "all"):
        tokenize(work)
    if what in ("pack", "all"):
        pack(work)
    if what == "sample":
        sample(work, Path(sys.argv[4]))
    if what == "table":
        table(packages, work)


if __name__ == "__main__":
    main()
