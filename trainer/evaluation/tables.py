"""The result of an evaluation, as a table and as JSON."""

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shared.system.errors import escape_unprintable
from trainer.evaluation.evaluate import EvaluationReport, SourceEvaluation


def to_json(report: EvaluationReport) -> dict[str, Any]:
    """The report as JSON values; null where there is no value."""
    rules = report.windows
    return {
        "model": str(report.folder.path),
        "fingerprint": report.folder.tokenizer.fingerprint,
        "parameters": report.folder.config.num_parameters,
        "device": str(report.device),
        "documents": rules.documents,
        "document_mask": rules.document_mask,
        "window": rules.length,
        "stride": rules.stride,
        "last_window": "full" if rules.fill_last else "short",
        "begin_id": rules.begin_id,
        "max_tokens": rules.max_tokens,
        "seconds": round(report.seconds, 3),
        "tokens_per_second": round(report.total.evaluation.tokens / report.seconds, 1),
        "total": _row(report.total),
        "sources": [{"source": name, **_row(source)} for name, source in report.sources.items()],
    }


def to_table(report: EvaluationReport) -> Group:
    """The report as a table with a row for each source, and one for all of them if there are several.

    Below it, how the figures were computed, in lines of their own: a table folds its caption to its own width.
    """
    table = Table(box=SIMPLE_HEAD)
    table.add_column("source", overflow="fold")
    for name in ("documents", "tokens", "bytes", "loss", "perplexity", "bits/byte"):
        table.add_column(name, justify="right")
    for name, source in report.sources.items():
        table.add_row(escape_unprintable(name), *_cells(source))
    if len(report.sources) > 1:
        table.add_section()
        table.add_row("all", *_cells(report.total))
    return Group(table, Text(_caption(report), style="dim"))


def _row(source: SourceEvaluation) -> dict[str, Any]:
    evaluation = source.evaluation
    return {
        "documents": source.documents,
        "tokens": evaluation.tokens,
        "bytes": evaluation.bytes,
        "nats": evaluation.nats,
        "loss": evaluation.loss if evaluation.tokens else None,
        "perplexity": evaluation.perplexity if evaluation.tokens and math.isfinite(evaluation.perplexity) else None,
        "bits_per_byte": evaluation.bits_per_byte,
        "answers_only": source.answers_only,
    }


def _cells(source: SourceEvaluation) -> list[str]:
    evaluation = source.evaluation
    counts = [f"{count:,}" for count in (source.documents, evaluation.tokens, evaluation.bytes)]
    if not evaluation.tokens:
        return [*counts, "–", "–", "–"]
    bits = evaluation.bits_per_byte
    perplexity = evaluation.perplexity
    return [
        *counts,
        f"{evaluation.loss:.4f}",
        f"{perplexity:.4f}" if perplexity < 1e6 else f"{perplexity:.4g}",
        "–" if bits is None else f"{bits:.4f}",
    ]


def _caption(report: EvaluationReport) -> str:
    """How the figures were computed, without which they cannot be compared."""
    rules = report.windows
    documents = {
        "apart": "each document by itself, its end not scored",
        "packed": "documents packed" + (" and masked" if rules.document_mask else "") + ", their ends scored",
    }[rules.documents]
    begin = "the first token not scored" if rules.begin_id is None else f"the first token given id {rules.begin_id}"
    last = ", the last one full" if rules.fill_last else ""
    first = "" if rules.max_tokens is None else f"; the first {rules.max_tokens:,} tokens of each file"
    speed = report.total.evaluation.tokens / report.seconds
    if report.total.answers_only:
        documents, begin = "each conversation by itself, as it is served", "the assistant's answers scored"
    elif any(source.answers_only for source in report.sources.values()):
        begin += "; of conversations only the assistant's answers scored"
    return (
        f"{documents}, {begin}; windows of {rules.length:,} tokens, stride {rules.stride:,}{last}{first}\n"
        f"{report.device}: {report.seconds:.1f} s, {speed:,.0f} tokens/s"
    )
