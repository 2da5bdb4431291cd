"""Small things to test with: a table model's laws, a tiny random Llama, a byte tokenizer."""

import itertools
import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 320
EOS = 258
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Every byte a token, three special ones, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    merges = []
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    return tokenizer


def save_tiny_llama(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """A random Llama of 2 layers with the byte tokenizer, as a folder of safetensors."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=EOS,
        bos_token_id=257,
        pad_token_id=EOS,
        # Wide enough that the random model has opinions.
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


class TableModel:
    """A language model that is a table: p(next | last token), over 5 tokens, with zero entries."""

    vocab_size = 5

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = torch.rand(5, 5, generator=generator, dtype=torch.float64) ** 3
        table[table < 0.02] = 0.0
        table[:, 4] += 0.01
        self.probs = table / table.sum(-1, keepdim=True)

    def next_probs(self, last: int) -> torch.Tensor:
        return self.probs[last]

    def sequence_probability(self, first: int, tokens: tuple[int, ...]) -> float:
        probability = 1.0
        for last, token in zip((first, *tokens), tokens, strict=False):
            probability *= float(self.probs[last, token])
        return probability

    def sequences(self, length: int) -> list[tuple[int, ...]]:
        return list(itertools.product(range(5), repeat=length))
