"""Text search in SQLite's FTS5, in memory: words, their beginnings, and relevance by BM25."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from engram.image.found import Found

# What FTS5 takes for words, and a star right behind one.
_WORD = re.compile(r"(\w+)(\*?)")

_TABLES = """
create table doc (id integer primary key, owner text not null, row text not null, words text not null);
create index doc_by_owner on doc (owner);
create virtual table found using fts5(
    words, content='doc', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
"""
_FIND = """
select rank as fit, doc.owner, doc.row from found join doc on doc.id = found.rowid
where found match :words {after} order by fit, doc.owner, doc.row limit :limit
"""
_AFTER = "and (rank, doc.owner, doc.row) > (:fit, :owner, :row)"


class FtsIndex:
    """See `engram.image.row_index.TextIndex`. Everything goes with the object; nothing is on disk.

    Relevance is by how often words are in a text, how long it is, and how rare they are in this partition.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # Nothing to be safe from: after a crash it is made anew.
        self._db.executescript(f"pragma journal_mode=off; pragma synchronous=off; {_TABLES}")
        # Never committed: FTS5 would write down its newest words each time, and finds them without that.
        self._db.execute("begin")

    def add(self, docs: Iterable[tuple[str, str, str]]) -> None:
        for doc in docs:
            inserted = self._db.execute("insert into doc (owner, row, words) values (?, ?, ?)", doc)
            self._db.execute("insert into found (rowid, words) values (?, ?)", (inserted.lastrowid, doc[2]))

    def remove(self, doc: tuple[str, str, str]) -> None:
        at = "select id from doc where owner = ? and row = ? and words = ? limit 1"
        (id_,) = self._db.execute(at, doc).fetchone()
        self._db.execute("insert into found (found, rowid, words) values ('delete', ?, ?)", (id_, doc[2]))
        self._db.execute("delete from doc where id = ?", (id_,))

    def find(self, words: str, after: Found | None, limit: int) -> list[Found]:
        match = match_of(words)
        if not match:
            return []
        fit, owner, row = after or (0, "", "")
        asked = {"words": match, "limit": limit, "fit": fit, "owner": owner, "row": row}
        found = self._db.execute(_FIND.format(after="" if after is None else _AFTER), asked)
        return [Found(*row) for row in found]


def match_of(words: str) -> str:
    """What a person typed as a query of FTS5: all of the words, each quoted, so that nothing in it is syntax. Empty if
    there is no word in it."""
    return " ".join(f'"{word}"{star}' for word, star in _WORD.findall(words))
