"""Writes the verdict into a folder, one file for each reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from ascend_perf.errors import InputError
from ascend_perf.gate import comment, documents
from ascend_perf.gate.outcome import Verdict
from ascend_perf.gate.texts import Lang

FILES: Final = ("gate.json", "gate.xml", "gate.md", "gate.sarif", "gate-codequality.json", "gate-gitcode.json")

Service = Literal["github", "gitlab", "gitcode", "none"]


def write(verdict: Verdict, folder: Path, where: str, lang: Lang = "en") -> tuple[Path, ...]:
    """Write all files of FILES; returns their paths.

    Args:
        verdict: what the gate says.
        folder: made when it is not there; files of an earlier verdict are overwritten.
        where: path of a file of the repository to which SARIF and code quality point.
        lang: of the texts.

    Raises:
        InputError: the folder cannot be written.
    """
    text = comment.comment(verdict, lang)
    contents = {
        "gate.json": _json(documents.as_document(verdict)),
        "gate.xml": documents.junit(verdict, lang),
        "gate.md": text.encode("utf-8", "replace"),
        "gate.sarif": _json(documents.sarif(verdict, where, lang)),
        "gate-codequality.json": _json(documents.code_quality(verdict, where, lang)),
        # Body of POST /repos/OWNER/REPO/pulls/NUMBER/comments of GitCode's API v5 (and Gitee's).
        "gate-gitcode.json": _json({"body": text}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in contents)


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
