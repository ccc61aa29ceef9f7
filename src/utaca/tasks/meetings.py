"""QMSum's test file, under the prompt and the score that LongBench has for its selection from this file.

LongBench's 200 rows are some of the same queries, with the transcripts in this form; QMSum's file does not say which,
so scores on the two sets are close but not equal.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

from utaca.errors import UserError
from utaca.records.texts import records
from utaca.tasks.rows import REMEDY, SHIPPED, Row, objects, text


class Meetings(SHIPPED["qmsum"]):
    """Every query to every meeting of the file, meeting by meeting, each meeting's general queries first.

    A smaller set takes the first query of every meeting, then the second of every meeting, and so on, so that intervals
    cover as many meetings as possible. Queries keep the order of the file.
    """

    benchmark = "QMSum"
    name = "meetings"
    files: ClassVar[Mapping[str, str]] = {"rows": "QMSum/test.jsonl"}
    rows = 281

    def read(self, path: Path) -> Iterator[Row]:
        """Yield a row for each query; the context is the meeting's transcript, a line for each turn."""
        for number, (where, meeting) in enumerate(records(path, REMEDY), start=1):
            turns = objects(meeting, "meeting_transcripts", where)
            lines = []
            for turn in turns:
                speaker = text(turn, "speaker", where)
                said = text(turn, "content", where, blank=True)  # Some speakers said nothing.
                lines.append(f"{speaker}: {said}")
            context = "\n".join(lines)
            if not context:
                raise UserError(f"{where} has nothing under 'meeting_transcripts'; {REMEDY}")
            general = objects(meeting, "general_query_list", where)
            specific = objects(meeting, "specific_query_list", where)
            for place, query in enumerate(general + specific, start=1):
                question = text(query, "query", where)
                answer = text(query, "answer", where)
                yield Row(f"{number}-{place}", str(number), context, question, (answer,))

    def select(self, rows: Iterable[Row], count: int) -> list[Row]:
        """Choose ``count`` rows, spread over meetings as the class says."""
        rows = list(rows)
        n_before = Counter[str]()  # queries to each meeting so far
        ranked = []  # (how many queries to its meeting precede it, its id) for each query
        for row in rows:
            ranked.append((n_before[row.document], row.id))
            n_before[row.document] += 1
        # The sort is stable: queries of equal rank keep the order of the file.
        ranked.sort(key=itemgetter(0))
        chosen = {row_id for _, row_id in ranked[:count]}
        return [row for row in rows if row.id in chosen]
