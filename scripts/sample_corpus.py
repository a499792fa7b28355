"""Write a sample Hindi-English corpus: real word frequencies, made-up sentences, the messiness of text found in the wild.

Words come from the package `wordfreq` (26,653 Hindi and 321,180 English words with how often people use them). They are strung
into sentences, paragraphs and documents. Every document has a topic, a few dozen words that it uses far more often than others
do, as real documents have; without one, a language model would find nothing to learn beyond how frequent each word is.

The folder holds what a real one holds: compressed JSON lines, Parquet, plain text files, a table, Windows line ends, a byte order
mark, emoji, joiners, code, and a handful of records that cannot be used. Equal arguments give equal bytes.

    python scripts/sample_corpus.py raw --megabytes 30
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import wordfreq

# Share of the text by source.
SHARES = {"en": 0.42, "hi": 0.42, "mix": 0.08, "notes": 0.05, "code": 0.03}
EMOJI = ("😀", "🙏", "🎉", "👨‍👩‍👧", "🇮🇳", "👍🏽", "❤️")
FIELDS = ("id", "text", "url")
DOCUMENTS_A_FILE = 4000


class Language:
    """Words of one language, drawn by how often people use them."""

    def __init__(self, code: str, ends: tuple[str, ...], rng: np.random.Generator):
        table = wordfreq.get_frequency_dict(code)
        # Sorted by word first: the order inside the package is by frequency, with ties in no stated order.
        pairs = sorted(table.items())
        self.words = np.array([word for word, _ in pairs], dtype=object)
        frequency = np.array([f for _, f in pairs])
        self.cumulative = np.cumsum(frequency / frequency.sum())
        # Topic words: neither the commonest hundred nor the rarest.
        by_rank = np.argsort(-frequency, kind="stable")
        self.topical = by_rank[100:12_000]
        self.ends = ends
        self.rng = rng

    def draw(self, count: int, topic: np.ndarray) -> list[str]:
        """`count` words; about one in three from the document's topic."""
        index = np.searchsorted(self.cumulative, self.rng.random(count)).clip(max=len(self.words) - 1)
        from_topic = self.rng.random(count) < 0.33
        # Zipf's law inside the topic as well: the first of its words are the ones that come back.
        rank = (len(topic) * self.rng.random(count) ** 3).astype(np.int64)
        index[from_topic] = topic[rank[from_topic]]
        return list(self.words[index])

    def topic(self) -> np.ndarray:
        """The words that one document is about."""
        return self.rng.choice(self.topical, size=int(self.rng.integers(12, 60)), replace=False)


def sentence(language: Language, topic: np.ndarray, rng: np.random.Generator) -> str:
    """One sentence with a capital where the script has one, commas, numbers, quotes, and an end mark."""
    words = language.draw(int(rng.integers(4, 24)), topic)
    for _ in range(rng.poisson(0.35)):
        words.insert(int(rng.integers(len(words))), number(rng))
    for place in np.flatnonzero(rng.random(len(words)) < 0.06):
        words[place] += ","
    if rng.random() < 0.04:
        words[-1] = f"({words[-1]})"
    if rng.random() < 0.03:
        words[0] = "“" + words[0]
        words[-1] += "”"
    if rng.random() < 0.01:
        words.insert(int(rng.integers(len(words))), str(rng.choice(EMOJI)))
    text = " ".join(words)
    return text[:1].upper() + text[1:] + str(rng.choice(language.ends))


def number(rng: np.random.Generator) -> str:
    """A number as people write them, in either script's digits."""
    value = int(10 ** rng.uniform(0, 6))
    form = rng.integers(5)
    if form == 0:
        return f"₹{value:,}"
    if form == 1:
        return str(value).translate(str.maketrans("0123456789", "०१२३४५६७८९"))
    if form == 2:
        return f"{value % 28 + 1}/{value % 12 + 1}/{1950 + value % 76}"
    if form == 3:
        return f"{value / 100:.2f}%"
    return str(value)


def document(languages: list[Language], rng: np.random.Generator) -> str:
    """Some paragraphs about one topic; lengths are log-normal, as they are on the web."""
    topics = [language.topic() for language in languages]
    num_sentences = int(np.clip(rng.lognormal(2.4, 0.9), 1, 400))
    paragraphs, current = [], []
    for _ in range(num_sentences):
        which = int(rng.integers(len(languages)))
        current.append(sentence(languages[which], topics[which], rng))
        if rng.random() < 0.2:
            paragraphs.append(" ".join(current))
            current = []
    paragraphs.append(" ".join(current))
    return roughen("\n\n".join(p for p in paragraphs if p), rng)


def roughen(text: str, rng: np.random.Generator) -> str:
    """What happens to text on its way: doubled spaces, trailing blanks, links, joiners, entities, shouting."""
    pick = rng.random()
    if pick < 0.04:
        text = text.replace(", ", ",  ", 3)
    elif pick < 0.07:
        text = text.replace("\n\n", "\r\n\r\n")
    elif pick < 0.09:
        text += f"\nhttps://example.org/{int(rng.integers(1e9)):x}?id={int(rng.integers(1e4))}   "
    elif pick < 0.11:
        text = text.replace("क्ष", "क्\u200dष").replace("न्ह", "न्\u200cह")
    elif pick < 0.13:
        text = text.replace("ड़", "\u095c").replace("ढ़", "\u095d")
    elif pick < 0.14:
        text = "&quot;" + text.replace("&", "&amp;", 2) + "&quot;"
    elif pick < 0.15:
        text = text[:80].upper() + text[80:]
    return text


def code_document(language: Language, rng: np.random.Generator) -> str:
    """A small program, indented with spaces or tabs."""
    words = [w for w in language.draw(60, language.topic()) if w.isascii() and w.isidentifier()] or ["value"]
    indent = "\t" if rng.random() < 0.3 else "    "
    lines = []
    for _ in range(int(rng.integers(2, 12))):
        name, first, second = (str(rng.choice(words)) for _ in range(3))
        lines.append(f"def {name}_{first}({second}, count={int(rng.integers(100))}):")
        lines.append(f'{indent}"""{" ".join(words[:6])}."""')
        lines.append(f"{indent}for i in range(count):")
        lines.append(f"{indent * 2}if {second}[i] >= {rng.random():.3f}:  # {first}")
        lines.append(f"{indent * 3}return {second}[i] ** 2 + {int(rng.integers(1000))}")
        lines.append(f"{indent}return None\n")
    return "\n".join(lines)


def documents(source: str, num_bytes: float, languages: dict[str, Language], rng: np.random.Generator) -> list[str]:
    """Documents of one source until they hold `num_bytes` of UTF-8."""
    speaks = {"en": ["en"], "hi": ["hi"], "mix": ["hi", "en"], "notes": ["hi", "en"], "code": ["en"]}[source]
    out, written = [], 0
    while written < num_bytes:
        if source == "code":
            text = code_document(languages["en"], rng)
        elif source == "notes":  # each note is in one language
            text = document([languages[speaks[int(rng.integers(2))]]], rng)
        else:
            text = document([languages[code] for code in speaks], rng)
        out.append(text)
        written += len(text.encode())
    return out


def chunks(texts: list[str]) -> list[list[str]]:
    """Documents a file at a time."""
    return [texts[i : i + DOCUMENTS_A_FILE] for i in range(0, len(texts), DOCUMENTS_A_FILE)]


def write_jsonl(folder: Path, texts: list[str], *, compress: str) -> None:
    """JSON lines, in numbered files."""
    folder.mkdir(parents=True)
    for number_, part in enumerate(chunks(texts)):
        lines = "".join(
            json.dumps({"id": f"{folder.name}-{number_}-{i}", "text": text}, ensure_ascii=i % 50 == 0) + "\n"
            for i, text in enumerate(part)
        ).encode()
        path = folder / f"part-{number_:05d}.jsonl"
        if compress == "gz":
            with gzip.GzipFile(f"{path}.gz", "wb", compresslevel=4, mtime=0) as file:
                file.write(lines)
        elif compress == "zst":
            with pa.CompressedOutputStream(f"{path}.zst", "zstd") as file:
                file.write(lines)
        else:
            path.write_bytes(lines)


def write_parquet(folder: Path, texts: list[str]) -> None:
    """Parquet, in numbered files of several row groups."""
    folder.mkdir(parents=True)
    for number_, part in enumerate(chunks(texts)):
        table = pa.table({"id": [f"{number_}-{i}" for i in range(len(part))], "text": part})
        pq.write_table(table, folder / f"part-{number_:05d}.parquet", row_group_size=1000, compression="zstd")


def write_notes(folder: Path, texts: list[str]) -> None:
    """One plain text file a document; the first with a byte order mark and Windows line ends."""
    folder.mkdir(parents=True)
    for number_, text in enumerate(texts):
        data = ("\ufeff" + text.replace("\n", "\r\n")) if number_ == 0 else text
        (folder / f"note-{number_:04d}.txt").write_bytes(data.encode())


def write_table(folder: Path, texts: list[str]) -> None:
    """A CSV table whose cells hold commas, quotes and line ends."""
    folder.mkdir(parents=True)
    with (folder / "posts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows((str(i), text, f"https://example.org/{i}") for i, text in enumerate(texts))


def write_unusable(folder: Path) -> None:
    """A few records that no pipeline should let through, and a file that is not text."""
    lines = [
        '{"id": "no-text"}',
        '{"id": "null", "text": null}',
        '{"id": "broken", "text": "cut',
        '{"id": "empty", "text": "   "}',
        "",
    ]
    (folder / "part-90000.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder.parent / "README.md").write_text("Made by scripts/sample_corpus.py. This file is not part of the corpus.\n")


def write_corpus(out: Path, *, megabytes: float, seed: int) -> str:
    """Write the whole folder; returns what is in it."""
    seeds = np.random.SeedSequence(seed).spawn(len(SHARES) + 2)
    languages = {
        "en": Language("en", (".", ".", ".", ".", "?", "!", "..."), np.random.default_rng(seeds[-1])),
        "hi": Language("hi", ("।", "।", "।", "।", "?", "!", "।।"), np.random.default_rng(seeds[-2])),
    }
    texts = {
        source: documents(source, share * megabytes * 1e6, languages, np.random.default_rng(child))
        for (source, share), child in zip(SHARES.items(), seeds, strict=False)
    }
    write_jsonl(out / "hi", texts["hi"], compress="gz")
    write_parquet(out / "en", texts["en"])
    write_table(out / "mix", texts["mix"])
    write_notes(out / "notes", texts["notes"])
    write_jsonl(out / "code", texts["code"], compress="zst")
    write_unusable(out / "hi")
    num_documents = sum(map(len, texts.values()))
    num_bytes = sum(len(t.encode()) for part in texts.values() for t in part)
    return f"{num_documents:,} documents, {num_bytes / 1e6:.1f} MB of text in {len(SHARES)} sources ({', '.join(SHARES)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--megabytes", type=float, default=30, help="about how much text (default 30)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists; remove it or name another folder")
    # Whole or absent: `make demo` takes a folder that is there for a corpus.
    side = arguments.out.with_name(f".{arguments.out.name}.part")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir(parents=True)
    told = write_corpus(side, megabytes=arguments.megabytes, seed=arguments.seed)
    side.rename(arguments.out)
    print(f"{arguments.out}: {told}")


if __name__ == "__main__":
    main()
