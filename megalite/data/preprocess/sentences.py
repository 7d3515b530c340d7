"""Text to sentences by rules, nothing downloaded. Nothing of the text is lost: sentences joined give it again."""

import re

ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "hon", "gen", "col", "capt", "lt", "sgt", "gov"),
        *("sen", "rep", "pres", "mt", "no", "vol", "pp", "fig", "figs", "eq", "ch", "sec", "art", "vs", "etc", "inc"),
        *("ltd", "co", "corp", "dept", "est", "approx", "cf", "al", "jan", "feb", "mar", "apr", "jun", "jul", "aug"),
        *("sep", "sept", "oct", "nov", "dec"),
    )
)
"""English words whose full stop ends no sentence."""
_END = re.compile(
    "(?<![.!?\u2026])(?P<mark>[.!?\u2026]++)[\"')\\]\u2019\u201d]*+(?P<gap>\\s++)(?=[\"'(\\[\u2018\u201c]*+[^\\Wa-z_])"
    "|[\u3002\uff01\uff1f\u0964]++[\"')\u2019\u201d\u300d\u300f]*+\\s*+"
    "|\n[^\\S\n]*+\n\\s*+"
)
"""A mark, space, and what can begin a sentence; the marks of scripts without spaces; an empty line."""
_LAST_WORD = re.compile(r"[\w.]*\Z")


def sentence_ends(text: str) -> list[int]:
    """Where each sentence ends, the white space after it included; the last is the end of the text."""
    ends = []
    for match in _END.finditer(text):
        if match["mark"] != "." or match["gap"].count("\n") > 1 or not _is_abbreviation(text, match.start()):
            ends.append(match.end())
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    return ends


def _is_abbreviation(text: str, end: int) -> bool:
    """Whether the word before `end` is one of the list, or single letters such as U.S or e.g."""
    found = _LAST_WORD.search(text[max(0, end - 12) : end])
    word = found[0].lower() if found else ""
    return word in ABBREVIATIONS or (bool(word) and all(len(part) == 1 and part.isalpha() for part in word.split(".")))


def split_sentences(text: str, *, keep_newlines: bool) -> list[str]:
    """The sentences of a text, without the white space between them; line ends stay with `keep_newlines`."""
    ends = sentence_ends(text)
    sentences = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    stripped = [sentence.strip(" \t\r" if keep_newlines else None) for sentence in sentences]
    return [sentence for sentence in stripped if sentence]
