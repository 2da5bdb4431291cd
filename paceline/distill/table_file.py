"""From the answers in a work folder to a warm table's file."""

from pathlib import Path
from typing import Any

from paceline.distill.corpus import Corpus, OtherCorpus
from paceline.distill.recycled import warm_tops
from paceline.lookup.warm_table import WarmTable
from paceline.model.load import LoadError, identify

# What is told in a line.
FAILURES = (LoadError, OtherCorpus, OSError)


def make_table(work: Path, out: Path, target: str, max_contexts: int) -> dict[str, Any]:
    """Raises one of FAILURES."""
    model = identify(target)
    folder = work / "corpus"
    if not folder.is_dir():
        raise OtherCorpus(f"{work} holds no answers")
    corpus = Corpus.there(folder)
    if corpus.target != model.model_fingerprint:
        raise OtherCorpus(f"{work} holds answers of another target than {target}")
    records = [record for record in corpus.read() if not record.is_held_out]
    tops = warm_tops(records, max_contexts)
    WarmTable(model.name, model.tokenizer_fingerprint, tops).write(out)
    return {
        "out": str(out),
        "contexts": len(tops),
        "answers": len(records),
        "answer_tokens": sum(len(record.output) for record in records),
        "bytes": out.stat().st_size,
    }
