"""What a target said, on disk: answers with the likeliest alternatives at each of their tokens.

A corpus is a folder of shards, written one by one and never changed, so that an interrupted
generation goes on where it was. Knows no model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_DESCRIPTION = "corpus.json"
# One chat in ten is held out, in pairs: one at temperature 0 and one at 1 (chats.py). Which ones
# does not depend on how many there are.
_HELD_OUT_PERIOD, _HELD_OUT_FROM = 20, 18


class OtherCorpus(Exception):
    """The folder holds a corpus that was made otherwise."""


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """One answer of the target. The token at `len(prompt) + i` is `output[i]`."""

    index: int
    prompt: list[int]
    output: list[int]
    temperature: float
    seed: int
    # Raw, at temperature 1, whatever the answer's own; best first.
    top_ids: Tensor  # int32 [len(output), num_top]
    top_logprobs: Tensor  # float16 [len(output), num_top]

    @property
    def is_held_out(self) -> bool:
        return self.index % _HELD_OUT_PERIOD >= _HELD_OUT_FROM


class Corpus:
    """The records of one folder."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        """description: how the records are made. Raises OtherCorpus where it says otherwise."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _DESCRIPTION
        if file.is_file() and json.loads(file.read_text(encoding="utf-8")) != description:
            raise OtherCorpus(
                f"{folder} holds answers of another target, or to other prompts or settings"
            )
        file.write_text(json.dumps(description), encoding="utf-8")

    @classmethod
    def there(cls, folder: Path) -> "Corpus":
        """The corpus of a folder, however it was made. Raises OSError where there is none."""
        return cls(folder, json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8")))

    @property
    def target(self) -> str:
        """Fingerprint of the model whose answers they are."""
        return str(json.loads((self._folder / _DESCRIPTION).read_text(encoding="utf-8"))["target"])

    def add(self, records: Sequence[Record]) -> None:
        """Writes a shard, whole or not at all."""
        if not records:
            return
        number = len(self._shards())
        meta = [
            {
                "index": record.index,
                "prompt": record.prompt,
                "output": record.output,
                "temperature": record.temperature,
                "seed": record.seed,
            }
            for record in records
        ]
        tensors = {
            "top_ids": torch.cat([record.top_ids for record in records]),
            "top_logprobs": torch.cat([record.top_logprobs for record in records]),
        }
        part = self._folder / f"{number:06}.part"
        save_file(tensors, part, metadata={"records": json.dumps(meta)})
        part.rename(self._folder / f"{number:06}.safetensors")

    def read(self) -> list[Record]:
        """All records, by index; of two with the same index the first."""
        records: dict[int, Record] = {}
        for shard in self._shards():
            with safe_open(shard, framework="pt") as file:
                ids, logprobs = file.get_tensor("top_ids"), file.get_tensor("top_logprobs")
                meta = json.loads(file.metadata()["records"])
            start = 0
            for fields in meta:
                end = start + len(fields["output"])
                record = Record(**fields, top_ids=ids[start:end], top_logprobs=logprobs[start:end])
                records.setdefault(record.index, record)
                start = end
        return [records[index] for index in sorted(records)]

    def _shards(self) -> list[Path]:
        return sorted(self._folder.glob("*.safetensors"))
