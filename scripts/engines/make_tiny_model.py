#!/usr/bin/env python3
"""Write a tiny Llama-shaped model directory that vLLM serves with `--load-format dummy` (no weights file).

The byte-level BPE tokenizer is trained on the language reference that ships with Python, so nothing is
downloaded. Needs the `tokenizers` package, which a vLLM environment has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LAYERS, HEADS, HIDDEN = 2, 4, 256
CONTEXT_TOKENS, VOCABULARY = 4096, 3000
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|turn|>", "<|end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '" + TURN_START + "' + message['role'] + '\n' + message['content'] + '" + TURN_END + "\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '" + TURN_START + "assistant\n' }}{%- endif -%}"
)


def train_tokenizer(vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()

    directory: Path = args.directory
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(VOCABULARY)
    tokenizer.save(str(directory / "tokenizer.json"))
    begin, end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    ids = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": begin}

    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": ids,
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": HIDDEN,
            "intermediate_size": 3 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS // 2,
            "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": CONTEXT_TOKENS,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            **ids,
        },
    }
    # config.json last: its presence says that the directory is complete.
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
