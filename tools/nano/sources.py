"""The texts that glm52-nano learns from: Debian packages, what is taken from each, and under which licence.

Every source allows the redistribution of derived work. A source tree may still carry a foreign file, so
build_corpus.py also drops each file whose head names the GPL without offering a permissive choice.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One package. form: "deb" is a binary package, "src" a source package (its upstream tarball).
    classes: what is read from it, of "c", "py", "en" (prose). only, skip: regular expressions on paths
    inside the package. cap_mb: at most this many megabytes of text, so that no source drowns the others."""

    package: str
    form: str
    licence: str
    classes: str
    only: str = ""
    skip: str = ""
    cap_mb: float = 12.0

    def class_of(self, path: str) -> str | None:
        """The class of the file at path, or None if it is not read."""
        suffix = path.rsplit(".", 1)[-1].lower()
        kind = {"c": "c", "h": "c", "py": "py"}.get(suffix, "")
        if not kind and suffix in (
            "html",
            "htm",
            "en",
            "rst",
            "md",
            "txt",
            "pod",
            "rdb",
            "data",
            "noun",
            "verb",
            "adj",
            "adv",
            "adoc",
        ):
            kind = "en"
        if kind not in self.classes.split() or SKIP_ALWAYS.search(path):
            return None
        if self.only and not re.search(self.only, path):
            return None
        return None if self.skip and re.search(self.skip, path) else kind


# Generated tables, translations and test data teach a small model nothing.
SKIP_ALWAYS = re.compile(
    r"/(locale|translations|po|_vendor|vendored|node_modules|pydoc_data|lib2to3/tests|encodings"
    r"|fixtures|testdata|test_data|autogen|unicode_data)/|(^|/)(genindex|search|py-modindex)"
    r"|LICEN[CS]E|COPYING|CMakeLists\.txt|requirements.*\.txt|changelog|ChangeLog|NEWS|release"
)

DOC = r"(^|/)docs?/"
ENGLISH = (
    Source(
        "python3.11-doc", "deb", "PSF-2.0", "en", only=r"/html/(?!whatsnew/changelog|_sources)", cap_mb=20
    ),
    Source("postgresql-doc-15", "deb", "PostgreSQL", "en", cap_mb=13),
    Source(
        "sqlite3-doc",
        "deb",
        "public domain",
        "en",
        skip=r"(hlr|matrix|keyword_index|c3ref/(intro|funclist))",
        cap_mb=13,
    ),
    Source(
        "rust-doc",
        "deb",
        "MIT or Apache-2.0",
        "en",
        cap_mb=17,
        skip=r"core_arch|/simd|\.rs\.html",
        only=r"/(book|reference|nomicon|rust-by-example|cargo|rustc|edition-guide|embedded-book|std|error_codes)/",
    ),
    Source("cmake-doc", "deb", "BSD-3-Clause", "en", only=r"\.html$", cap_mb=7),
    Source(
        "llvm-14-doc",
        "deb",
        "Apache-2.0 WITH LLVM-exception",
        "en",
        only=r"\.html$",
        skip=r"doxygen",
        cap_mb=11,
    ),
    Source("erlang-doc", "deb", "Apache-2.0", "en", only=r"\.html$", cap_mb=13),
    Source("libboost1.74-doc", "deb", "BSL-1.0", "en", only=r"\.html$", cap_mb=10),
    Source("nodejs-doc", "deb", "MIT", "en", only=r"\.html$", skip=r"all\.html", cap_mb=6),
    Source("golang-1.19-doc", "deb", "BSD-3-Clause", "en", cap_mb=4),
    Source("wordnet-base", "deb", "WordNet", "en", only=r"/data\.(noun|verb|adj|adv)$", cap_mb=13),
    Source("r-cran-janeaustenr", "deb", "public domain (novels), MIT (package)", "en", only=r"Rdata\.rdb$"),
    Source("bible-kjv-text", "deb", "public domain", "en", only=r"bible\.data$"),
)


def _src(names: str, licence: str, classes: str, **more: object) -> tuple[Source, ...]:
    return tuple(Source(name, "src", licence, classes, **more) for name in names.split())


def _deb(names: str, licence: str, classes: str, **more: object) -> tuple[Source, ...]:
    return tuple(Source(name, "deb", licence, classes, **more) for name in names.split())


C_CODE = (
    *_src("sqlite3", "public domain", "c", only=r"/(src|ext)/", cap_mb=20),
    *_src("postgresql-15", "PostgreSQL", "c", skip=r"/(mb|snowball|unicode|po)/", cap_mb=28),
    *_src(
        "python3.11",
        "PSF-2.0",
        "c py",
        skip=r"/(idlelib|clinic|_decimal/libmpdec|cjkcodecs|decimaltestdata)/",
        cap_mb=40,
    ),
    *_src("libtomcrypt libtommath", "public domain", "c", cap_mb=6),
    *_src("zlib", "Zlib", "c"),
    *_src("libsdl2", "Zlib", "c", only=r"/(src|include)/", cap_mb=10),
    *_src("libzstd", "BSD-3-Clause (or GPL-2)", "c", only=r"/(lib|programs)/"),
    *_src("lz4", "BSD-2-Clause", "c", only=r"/lib/"),
    *_src(
        "redis libevent memcached lighttpd libpcap libwebp opus libogg libvorbis unbound hiredis capstone",
        "BSD-3-Clause",
        "c",
        skip=r"/deps/|Mapping|GenAsm|GenDis|/tests?/",
        cap_mb=8,
    ),
    *_src("tcpdump libedit", "BSD-3-Clause", "c", cap_mb=8),
    *_src("flac", "BSD-3-Clause", "c", only=r"/libFLAC/"),
    *_src("nginx libarchive jemalloc cmark", "BSD-2-Clause", "c", cap_mb=10),
    *_src("libvpx", "BSD-3-Clause", "c", only=r"/(vp8|vp9|vpx|vpx_dsp)/", cap_mb=6),
    *_src(
        "libuv1 lua5.4 musl c-ares jq libxml2 expat nghttp2 libffi cjson wayland libdrm weston duktape"
        " dropbear mimalloc",
        "MIT",
        "c",
        skip=r"libtom(crypt|math)|/tests?/fuzz",
        cap_mb=10,
    ),
    *_src("libpng1.6", "libpng-2.0", "c"),
    *_src("libjpeg-turbo", "IJG and BSD-3-Clause", "c", cap_mb=6),
    *_src("freetype", "FTL", "c", cap_mb=8),
    *_src("openssh libbsd", "BSD (various)", "c", cap_mb=10),
    *_src("tmux libsodium mandoc mujs pgbouncer", "ISC", "c", cap_mb=8),
    *_src("bzip2", "bzip2-1.0.6", "c"),
    *_src("tcl8.6", "TCL", "c", skip=r"/(tests|tools)/|libtommath", cap_mb=10),
    *_src("apr apr-util apache2 mbedtls", "Apache-2.0", "c", cap_mb=10),
)
MIXED = (
    *_src(
        "openssl", "Apache-2.0", "c en", only=r"/(crypto|ssl|include|apps|doc)/", skip=r"/test/", cap_mb=24
    ),
    *_src("curl", "curl", "c en", only=r"/(lib|src|include|docs)/", cap_mb=18),
)
PYTHON = (
    *_src(
        "python-django",
        "BSD-3-Clause",
        "py en",
        only=r"/(django|docs)/",
        skip=r"/docs/(releases|_)",
        cap_mb=24,
    ),
    *_src("sympy jinja2", "BSD-3-Clause", "py en", skip=r"/benchmarks?/|/tests/|hyper|rubi", cap_mb=14),
    *_src("rich python-pip", "MIT", "py en", skip=r"/docs/(?!en)[a-z]{2}/|/data/", cap_mb=10),
    *_src("pillow", "HPND", "py en", only=r"/(src|docs)/", cap_mb=4),
    *_deb(
        "python3-numpy python3-scipy python3-pandas python3-sklearn python3-statsmodels python3-dask"
        " python3-celery python3-networkx python3-flask python3-werkzeug python3-click python3-starlette"
        " python3-ipython python3-scrapy python3-skimage python3-rdflib",
        "BSD-3-Clause",
        "py",
        skip=r"/benchmarks?/",
        cap_mb=12,
    ),
    *_deb(
        "python3-sphinx python3-pygments python3-numba",
        "BSD-2-Clause",
        "py",
        skip=r"_mapping|/(builtins|_builtins)\w*\.py",
        cap_mb=10,
    ),
    *_deb(
        "python3-sqlalchemy python3-twisted python3-pytest python3-mypy black python3-attr python3-setuptools"
        " python3-fastapi python3-pydantic python3-poetry",
        "MIT",
        "py",
        skip=r"typeshed",
        cap_mb=12,
    ),
    *_deb(
        "python3-tornado python3-aiohttp python3-requests meson python3-xarray python3-nltk",
        "Apache-2.0",
        "py",
        cap_mb=10,
    ),
    *_deb("python3-matplotlib", "PSF-style", "py", cap_mb=12),
    *_deb("python3-docutils", "public domain", "py", cap_mb=6),
    *_deb("python-sqlalchemy-doc", "MIT", "en", only=r"\.html$", skip=r"changelog", cap_mb=10),
    *_deb("python-pandas-doc", "BSD-3-Clause", "en", only=r"\.html$", skip=r"whatsnew|/_modules/", cap_mb=12),
)
SOURCES = ENGLISH + C_CODE + MIXED + PYTHON
BIBLE_PROGRAM = "bible-kjv"  # unpacks the text of bible-kjv-text; its own code is not read

# Caps per class over all sources, in megabytes of text.
CLASS_CAP_MB = {"c": 120.0, "py": 120.0, "en": 140.0}
