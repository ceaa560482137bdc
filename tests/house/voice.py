"""The voice of pages, docstrings, comments and messages: what is to be rewritten, and how.

``python -m tests.house.voice [PATH...]`` prints a line for each finding: file and line, the rule, the words, and what
to write instead. Without a path it reads README, the other pages and ``rlexp``. A test lets no count rise.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from tests.house.source_tree import PACKAGE, ROOT

MOST_WORDS = 35
"""Of a sentence in a page."""
ANY, PAGES, CODE, DOCSTRINGS = "any", "pages", "code", "docstrings"


class Rule(NamedTuple):
    """Words that are rewritten, and where the rule holds."""

    name: str
    pattern: re.Pattern[str]
    write: str
    texts: str = ANY


def rule(name: str, pattern: str, write: str, texts: str = ANY) -> Rule:
    """Return a rule; a space in the pattern stands for any space, line breaks too."""
    return Rule(name, re.compile(pattern.replace(" ", r"\s+")), write, texts)


_NOTHING = r"(?:None|False|True|NaN|empty|[Nn]one|nothing|null|[Oo]nly|[Aa]lso|even|[Ee]xcept|[Rr]aises?|[a-z]\w*Error)"
_CONDITION = (
    r"(?:there (?:is|are|was|were)\b|(?:it|that|this|they|one) (?:cannot|could not|has|have|had|does|do|did|may|is not"
    r"|are not|was not|fails?|failed|refuses)\b|(?:none|nobody|nothing|neither)\b|no [a-z]+)"
)
RULES = (
    rule("where-for-if", rf"\b{_NOTHING}\)?(?:,[^.,;:]{{1,40}},)? where (?!to\b|[a-z]+ comes\b)", "if, for, when"),
    rule("where-for-if", r"\b\w+Error(?:, with [^.;:]{1,40},)? where\b", "if"),
    rule("where-for-if", rf"[,;)] where {_CONDITION}", "if"),
    rule("where-for-if", r"(?:^|[.:;] )Where (?!to\b|does\b|do\b|is\b|are\b)[^.;:?]{3,90}, ", "If …,", PAGES),
    rule(
        "torn-docstring",
        r"^(?:(?:Of|By|As|Into|Beside|Whose|To|Through) (?!least\b|most\b|\d)|For how\b"
        r"|(?:With|For|In|At|Between|From|On|Without) (?!least\b|most\b|\d)(?![^.:;]+, [a-z]))",
        "a noun first: 'Seconds between two …', 'Seed of …', 'Handlers by name'",
        DOCSTRINGS,
    ),
    rule("of-what", r"\b(?:those|that) of\b(?! course\b)", "the noun: 'the file of', 'the weights of'"),
    rule(
        "is-no",
        r"(?<![Tt]here\s)\b(?:is|are) no (?!longer\b|more\b|less\b|other\b|such\b|better\b|worse\b|larger\b|smaller\b)",
        "is not a …, has no …",
    ),
    rule("history", r"\bby now\b|, missed\b|\bused to be\b|\bso far this\b", "what is true today", PAGES),
    rule("behind", r"\bbehind (?:it|this|that|them|each|its name|a name|the name|which)\b", "after, or lags by"),
    rule("coinage", r"(?<![`./\w])[Ff]old(?:s|ed|ing)?\b", "n-step computation; compute", PAGES),
    rule("coinage", r"(?<![`./\w])[Bb]eats?\b", "heartbeat", PAGES),
    rule("coinage", r"(?<![`./\w])bundles?\b", "what a trial reserves; for ONNX the exported files", PAGES),
    rule("coinage", r"\brungs? (?:of|for) (?:ε|epsilon)", "the worker's ε"),
    rule("riddle", r"\bcounts? twice\b|\bwrites? over\b", "the plain statement: 'is counted once', 'overwrites'"),
)


class Text(NamedTuple):
    """A paragraph of a page, or a docstring, comment or message, and the line on which it begins."""

    kind: str
    line: int
    words: str


class Finding(NamedTuple):
    """Words to rewrite."""

    path: str
    line: int
    rule: str
    words: str
    write: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {' '.join(self.words.split())!r} -> {self.write}"


def findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield what is to be rewritten in these files, by file and line."""
    for path in paths:
        source, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        texts = page_texts(source) if path.suffix == ".md" else code_texts(source)
        found = [found for text in texts for found in _findings_of(text, name)]
        yield from sorted(set(found), key=lambda finding: finding.line)


def _findings_of(text: Text, name: str) -> Iterator[Finding]:
    for each in RULES:
        if each.texts in (ANY, text.kind) or (each.texts == CODE and text.kind == DOCSTRINGS):
            for match in each.pattern.finditer(text.words):
                yield Finding(name, _line(text, match.start()), each.name, _context(text.words, match), each.write)
    if text.kind == PAGES:
        for sentence, start in sentences(text.words):
            if (number := len(sentence.split())) > MOST_WORDS:
                words = " ".join(sentence.split()[:8])
                yield Finding(name, _line(text, start), "long-sentence", f"{words} …", f"{number} words: two sentences")


def _line(text: Text, at: int) -> int:
    return text.line + text.words[: len(text.words) - len(text.words[at:].lstrip())].count("\n")


def _context(words: str, match: re.Match[str]) -> str:
    rest = words[match.end() :].split(maxsplit=4)[:4]
    return f"{match[0]} {' '.join(rest)}".strip()


def sentences(words: str) -> Iterator[tuple[str, int]]:
    """Yield the sentences of a paragraph, and at which character each begins; abbreviations end none."""
    start = 0
    for end in re.finditer(r"(?<!e\.g)(?<!i\.e)(?<!vs)[.!?][)\"”*_]*(?=\s+[A-Z0-9`\"“(*\[_]|\s*$)", words):
        yield words[start : end.end()], start
        start = end.end()
    if words[start:].strip():
        yield words[start:], start


def page_texts(source: str) -> Iterator[Text]:
    """Yield paragraphs, points of lists and cells of tables, without blocks; code in a line is one word."""
    paragraph: list[str] = []
    first = 1
    for number, line in enumerate([*_prose(source).splitlines(), ""], start=1):
        starts = re.match(r"\s*(?:[-*+] |\d+\. |#+ |\||>|$)", line)
        if starts and paragraph:
            yield Text(PAGES, first, "\n".join(paragraph))
            paragraph = []
        if line.lstrip().startswith("|"):
            cells = line.strip().strip("|").split("|")
            yield from (Text(PAGES, number, cell.strip()) for cell in cells if cell.strip(" -:"))
        elif line.strip():
            first = first if paragraph else number
            paragraph.append(re.sub(r"^\s*(?:[-*+] |\d+\. |#+ |> )", "", line))


def _prose(source: str) -> str:
    """Blank out what is no prose; every line stays where it is."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    source = re.sub(r"^( *)(`{3,}).*?^\1\2$", blank, source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(r"<!--.*?-->", blank, source, flags=re.DOTALL)
    source = re.sub(r"``?([^`]+)``?", lambda code: "`" + code[1].replace(" ", "_"), source)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", source)


def code_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, also those of attributes; comments on successive lines as one; and other strings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    yield from (Text(DOCSTRINGS, node.lineno, str(node.value)) for node in docstrings.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield Text(CODE, node.lineno, node.value)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != block[-1][0] + 1:
                yield Text(CODE, block[0][0], "\n".join(text for _, text in block))
                block = []
            block.append((token.start[0], token.string.lstrip("# ")))
    if block:
        yield Text(CODE, block[0][0], "\n".join(text for _, text in block))


def all_files() -> list[Path]:
    """Return the pages, of the top without the changelog, and the modules of rlexp."""
    top = [path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"]
    return [*top, *sorted((ROOT / "docs").glob("*.md")), *sorted(PACKAGE.rglob("*.py"))]


def words_of(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the number of words and of sentences of these pages, without titles and tables."""
    words = number = 0
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for text in page_texts("\n".join("" if line.lstrip().startswith(("#", "|")) else line for line in lines)):
            for sentence, _ in sentences(text.words):
                words, number = words + len(sentence.split()), number + 1
    return words, number


def main(names: list[str]) -> int:
    """Print the findings of these files and folders, their number by rule, the mean sentence; 1 if there are any."""
    chosen = [Path(name).resolve() for name in names]
    files = [path for path in all_files() if not chosen or any(path.is_relative_to(each) for each in chosen)]
    if unknown := [name for name in names if not any(file.is_relative_to(Path(name).resolve()) for file in files)]:
        print(f"neither a page nor a module of rlexp: {', '.join(unknown)}", file=sys.stderr)
        return 2
    numbers: dict[str, int] = {}
    for finding in findings(files):
        print(finding)
        numbers[finding.rule] = numbers.get(finding.rule, 0) + 1
    print(", ".join(f"{name}: {number}" for name, number in sorted(numbers.items())) or "nothing to rewrite")
    if pages := [path for path in files if path.suffix == ".md"]:
        words, number = words_of(pages)
        total = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
        print(f"{total} words; {words / max(number, 1):.1f} words a sentence")
    return 1 if numbers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
