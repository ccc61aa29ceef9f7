"""What an answer states of one attribute: its markup, other subjects, refusals, negations and hedges put aside."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass

from utaca.reference import names

_NOT = r"(?:n['’]t|\s+not|not)"
_TOLD = (
    r"(?:known|mentioned|stated|specified|provided|given|available|disclosed|described|included|listed|found|clear"
    r"|reported|indicated|revealed|recorded|named|told|said|determined|applicable)"
)
_TELL = r"(?:mention|state|specify|say|provide|know|include|contain|give|tell|reveal|indicate|disclose|name|list)"
_NEWS = r"(?:information|mention|data|record|details?|answer|idea|clue|hint|indication|evidence)"
_BE = r"(?:is|was|are|were|has\s+been|have\s+been)"
_REFUSALS = (
    r"un(?:known|specified|disclosed|available|clear|stated|mentioned|identified|determined|recorded)",
    rf"(?:not|isn['’]t|wasn['’]t|never)\s+(?:been\s+)?(?:\w+\s+)?{_TOLD}",
    r"not\s+(?:possible\s+to\s+\w+|in\s+the\s+(?:text|passage|document|context))",
    r"not\s+enough\s+(?:\w+\s+)?(?:information|context|data|details?)",
    rf"(?:can|could){_NOT}\s+(?:be\s+)?"
    r"(?:determined?|identif(?:y|ied)|find|found|infer(?:red)?|say|said|tell|answer(?:ed)?|know|establish(?:ed)?)",
    r"(?:am\s+|is\s+|was\s+|be\s+|['’]m\s+)?unable\s+to\s+\w+",
    r"(?:it\s+is\s+)?impossible\s+to\s+\w+",
    r"(?:there\s+is\s+|i\s+have\s+|i['’]ve\s+|gives?\s+|has\s+|have\s+|found\s+)?"
    rf"no\s+(?:\w+\s+){{0,2}}?{_NEWS}(?:\s+{_BE}\s+\w+)?",
    rf"no\s+(?:\w+\s+){{1,2}}?{_BE}\s+(?:\w+\s+)?{_TOLD}",
    rf"(?:does|do|did){_NOT}\s+{_TELL}",
    r"nothing\s+(?:is|was)\s+(?:said|known|stated|mentioned)",
    r"(?:insufficient|missing|lacking)\s+(?:information|data)",
    r"is\s+silent|remains?\s+a\s+mystery|mystery(?=\W*$)|blank(?=\W*$)|left\s+(?:blank|empty|open)",
    r"to\s+be\s+determined|tb[ad]\b|n/a|private\s+(?:number|information)|any(?:body|one)['’]s\s+guess",
    r"(?:i['’]m\s+|i\s+am\s+)?sorry\b(?:,?\s+but\b)?",
    r"unbekannt|nicht\s+(?:bekannt|genannt|angegeben)|keine\s+angabe|inconnue?|non\s+précisée?|desconocid[oa]|sconosciut[oa]|onbekend|desconhecid[oa]|okänd",
)
ABSTENTION = re.compile(
    r"\b(?:(?:is|are|was|were|has|have|had|it's|remains?|goes|left)\s+)?"
    rf"(?:{'|'.join(_REFUSALS)})"
    r"(?:\s+(?:about|on|of|for|in|by|from|to|within|whether|if|when|where|at)\b[^.;]*)?"
    r"|^\W*(?:none|null|nil|nothing|nobody|no\s+one|[?–—-]+)\W*$",
    re.IGNORECASE,
)
"""A refusal to give a value, with what it refers to."""
NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|without|cannot|hardly|nowhere)\b|n['’]t\b|\bno\s+(?!\.?\d)(?=\w)|\b(?:den(?:y|ies|ied)|rule[sd]?\s+out)\b"
    r"|\b(?:false|wrong|incorrect|untrue|mistaken|inaccurate|erroneous)(?:ly)?\b",
    re.IGNORECASE,
)
TAKEN_BACK = re.compile(
    r"\b(?:correct(?:ion|ing)|scratch\s+that|strike\s+that|on\s+second\s+thoughts?|i\s+meant?|apolog\w+|my\s+(?:mistake|bad)|or\s+rather|oops)\b"
    r"|\b(?:no|wait|sorry|actually)\s*(?:[,;:!-]|\.(?!\s?\d))|\bi\s+was\s+(?:wrong|mistaken)\b"
    r"|\b(?:that|this|it|the\s+(?:above|previous|first)|(?:my|the|previous)\s+(?:\w+\s+)?answer)\s*(?:is|was|['’]s)(?:n['’]t)?\s+(?:\w+\s+)?"
    r"(?:wrong|incorrect|false|untrue|(?<=not\s|n't\s)(?:true|right|correct)|an?\s+(?:mistake|error|slip))\b",
    re.IGNORECASE,
)
"""Words that take back what stands before them."""
_EXCLUDED = re.compile(
    r",?\s*\b(?:rather\s+than|instead\s+of|as\s+opposed\s+to|other\s+than|except(?:\s+for)?|apart\s+from)\s+[^,.;]+"
    r"|,\s*(?:and\s+|but\s+)?(?:not|never)\s+[^,.;]+|\b(?:any|every)thing\s+but\s+[^,.;]+"
    r"|\(\s*(?:formerly|previously|once|not)\b[^)]*\)|,?\s+\b(?:formerly|previously)\s+[^,.;]+",
    re.IGNORECASE,
)
_IDIOM = re.compile(
    r",?\s*\b(?:if\s+i(?:\s+a|['’])m\s+not\s+mistaken|not\s+surprisingly|although\s+i\s+am\s+not\s+(?:\w+\s+)?sure"
    r"|not\s+(?:only|just|merely)|(?:as\s+)?(?:i|we)\s+(?:believe|think|suppose|guess|assume)|(?:there\s+is\s+)?no\s+doubt|without\s+(?:a\s+|any\s+)?doubt"
    r"|no(?:ne|thing|where)?\s+(?:one\s+)?(?:other|else)\s+(?:than|but)|nothing\s+but"
    r"|(?:\w+n['’]t|cannot|not|never)\s+(?:be\s+|have\s+been\s+)?(?:in\s+|at\s+|for\s+)?any\w*\s+(?:(?:place|thing|one)\s+)?(?:(?:other|else)\s+)?(?:but|than)|no\s+less\s+than)\b,?",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"(?:^\W*|\b(?:employs|employed|hires|hired|admitted)\s+)(?:her|his|their|the)\s+(?:\w+\s+){0,2}?"
    r"(?:brother|sister|father|mother|parents?|son|daughter|husband|wife|spouse|partner|cousin|uncle|aunt|friend"
    r"|colleague|neighbou?r|boss|rival|grand\w+|twin|teacher|niece|nephew|flatmate|fianc[ée]e?)\b",
    re.IGNORECASE,
)
_GUESS = re.compile(r"\b(?:may|might|could|maybe|perhaps|possibly|guess)\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\s*;\s*|,\s+(?=(?:she|he|they)\b)|,?\s+\b(?:but|however|although|though|yet|while|whereas)\b,?\s*"
    r"|(?<=[a-zà-ÿ\d)][.!?])\s+(?=[A-Z])|[\s,.:?!-]+(?=(?:[Nn]o|[Ww]ait|[Ss]orry|[Aa]ctually)\s*[,:!-]|or\s+rather\b|I\s+meant?\b)"
)
_SOURCE = re.compile(
    r"\s*[(\[]\s*(?:sources?|see|cf|ref\w*|as\s+\w+|according|quot\w+|paragraph|line|page|from\s+the)\b[^)\]]*(?:[)\]]|\Z)", re.IGNORECASE
)
_REMARK = (
    r"<\||</s>|\[/?INST|(?<=\S)\s*(?:#{3,}|-{3,}|={3,})|(?<=\S)\s+(?:Human|User|System|Q|Question|Context|Document|Passage"
    r"|Explanation|Reason(?:ing)?|Rationale|Justification|Sources?|Notes?|Evidence|References?|Comment|N\.?B\.?|P\.?S\.?)\s*:"
)
_OPENING = (
    "It|This|That|These|She|He|They|The|I|We|In|As|At|According|Based|Because|There|Her|His|Their|My|For|Please|Let|Thanks?|You|And|If|So"
    "|Also|What|Who|When|Where|Which|Is|Does|Here|Born|Her|Since|While|Although|Source|Explanation|Note"
)
_REMARKS, _ANY_REMARK = re.compile(_REMARK), re.compile(rf"(?<=\S)\s*\n|{_REMARK}|(?<=[.!?])\s+(?=(?:{_OPENING})\b|[(\[])")
_ASIDE = re.compile(
    r"\b(?:who|whom|whose|which|while|whereas|although|though|unlike|after|before|despite|her|his|their|but)\b", re.IGNORECASE
)

_PATTERN = re.compile(r"(?:^|(?<=[.!?]\s)|(?<=\n))The ([\w -]+?) of (.+?) (?:is|was)\b:?\s*", re.IGNORECASE)
_NEXT_FACT = re.compile(r",?\s+\band\s+(?:her|his|their|the|she|he|they)\b\s.*$", re.IGNORECASE | re.DOTALL)
_TITLE = {
    "mr", "mrs", "ms", "miss", "dr", "prof", "professor", "sir", "lady", "she", "he", "her", "him", "person", "the",
}  # fmt: skip
_OTHER_PERSON = re.compile(
    r"^\W*(?P<name>[A-Z]\w+(?:\s+[A-Z][\w.]*)+)\s+(?=(?:is|was|works?|worked|has|had|lives?|lived|studied|studies"
    r"|attended|graduated|majored|joined|comes|came|holds|got|married)\b)"
)

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MARKUP = (
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[\d+\]"), ""),
    (re.compile(r"\\[a-zA-Z]+\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[a-zA-Z]+\{([^{}]*)\}"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^>@]*>"), ""),
    (re.compile(r"\*+|`+|__+|(?<!\w)_|_(?!\w)|[\"“”„«»‹›]"), ""),
    (re.compile(r"(?<!\w)['‘‚](?=\w)(?!\d\d\b)|(?<=\w)['’](?!\w)(?<!s['’])"), ""),
    (re.compile(r"^\s*(?:#+|[-*•])\s+", re.MULTILINE), ""),
    (re.compile(r"^\s*\$+|\$+\s*$"), ""),
    (re.compile(r"[‐‑‒–—−]"), "-"),
)


@dataclass(frozen=True)
class Claim:
    """A stretch of an answer that asserts something, and whether it is a guess after a refusal."""

    text: str
    guess: bool


def clean(text: str, attribute: str) -> str:
    """Text without markup and in usual characters; a JSON object gives its value for the attribute."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).strip()
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError:
            given = {}
        text = str(given.get(attribute, given.get("answer", text)))
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def about(question: str, attribute: str, text: str) -> str:
    """The part of an answer that is about the attribute and the person; empty where it is about others only."""
    text = without_remarks(text)
    asked = re.search(rf"{re.escape(attribute)} of ([^?]+?)\s*(?:[?,.]|$)", question, re.IGNORECASE)
    person = asked[1] if asked else ""
    sentences = list(_PATTERN.finditer(text))
    starts = [match.start() for match in sentences[1:]] + [len(text)]
    for match, end in zip(sentences, starts, strict=False):
        if names.fold(match[1]) == names.fold(attribute) and (not person or same_person(person, match[2])):
            return text[match.end() : end].strip()
    if sentences:
        return ""
    line = re.search(rf"\b{re.escape(attribute)}\W{{0,4}}\s*(?::|\bis\b|\bwas\b|=)\s*([^\n]+)", text, re.IGNORECASE)
    stated = _NEXT_FACT.sub("", line[1]).strip() if line else text
    for named in re.finditer(rf"(?:[,;]|\b(?:but|while|whereas|and))\s+{re.escape(person.split(' ')[0] or '$')}\b(?!['’]s)", stated):
        # What a long sentence says of others, or of other times, before it comes to the person.
        if _ASIDE.search(stated[: named.start() + 6]):
            stated = stated[named.start() :].lstrip(",; ")
            break
    other = _OTHER_PERSON.match(stated)
    return "" if other and person and not same_person(person, other["name"]) else stated


def without_remarks(text: str, value: bool = False) -> str:
    """A text without the remarks after its statement: explanations, sources, other speakers' turns; a retraction stays.

    Where it is a value, whatever follows its paragraph, and each sentence of its own, is a remark.
    """
    text = _SOURCE.sub("", text)
    remark = (_ANY_REMARK if value else _REMARKS).search(text)
    if remark is None:
        return text
    kept, rest = text[: remark.start()].rstrip(), text[remark.start() :]
    back = TAKEN_BACK.search(rest)
    if back is None:
        return kept.removesuffix(".")
    sentence = max(rest.rfind(end, 0, back.start()) for end in (". ", "! ", "? ", "\n"))
    return f"{kept} {rest[sentence + 1 :].strip()}"


def same_person(asked: str, named: str) -> bool:
    """Whether a name means the person asked for: with initials, a part or more given names, in any order."""
    own = re.findall(r"\w+", names.fold(asked))
    its = [word for word in re.findall(r"[\w'’]+", names.fold(named)) if word not in _TITLE]
    if not its:
        return True
    known = [word in own or (len(word) == 1 and any(name.startswith(word) for name in own)) for word in its]
    if all(known):
        return True
    # Further given names stand between the first and the last, and are written like names.
    return known[0] and known[-1] and {*own} <= {*its} and not re.search(r"\b[a-z]", named)


def claims(text: str) -> list[Claim]:
    """The stretches of a text that assert something of the person; refusals and denials left out."""
    text = _EXCLUDED.sub("", _IDIOM.sub("", text))
    found: list[Claim] = []
    refused = False
    for clause in _CLAUSE.split(text):
        if TAKEN_BACK.search(clause):
            found.clear()
            clause = TAKEN_BACK.sub("", clause)
        if ABSTENTION.search(clause):
            refused = True
        elif clause.strip() and not NEGATION.search(clause) and not _RELATIVE.search(clause):
            found.append(Claim(clause.strip(), refused and _GUESS.search(clause) is not None))
    return found
