"""Writes the texts that both implementations read: {"question", "prompts", "lines", "books"}.

usage: texts.py KJV.jsonl OUT.json
Everything but the two texts for perplexity is in this file or comes from the seed in it.
"""
import json
import random
import sys
from pydoc_data.topics import topics

SEED = 20261129
LINES = 2000
QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
PROMPTS = [
    QUESTION + "The capital of France is Paris.<|im_end|>\n",
    "pub fn median(values: &mut [f64]) -> Option<f64> {\n    if values.is_empty() {\n        return None;\n    }\n"
    "    values.sort_by(|a, b| a.total_cmp(b));\n    Some(values[values.len() / 2])\n}\n",
    "The water cycle begins when the sun warms the sea. Water evaporates, rises, cools and turns into clouds; when the "
    "drops in them grow heavy enough, they fall as rain or snow, and rivers carry them back.",
    "{\"order\": 1042, \"customer\": {\"name\": \"Ada\", \"city\": \"London\"}, \"items\": [{\"sku\": \"A-7\", "
    "\"count\": 2, \"price\": 9.5}, {\"sku\": \"B-1\", \"count\": 1, \"price\": 120.0}]}",
    "Liebe Grüße aus Köln! 東京は日本の首都です。Le musée est fermé le mardi. Москва — столица России. 🙂🙂 "
    "Q: 17 + 25 = ? A: 42. Q: 9 * 8 = ? A: 72.",
]
CODE = [
    "fn main() {", "let x = vec![1, 2, 3];", "#include <stdio.h>", "for (int i = 0; i < n; ++i) {", "}", "});",
    "def f(self, *args, **kwargs):", "return [x for x in xs if x % 2 == 0]", "SELECT id, name FROM users WHERE id >= 10;",
    "<div class=\"row\">", "</div>", "// don't", "/* it's */", "a->b.c[0] = ~0x7fULL;", "x!==y&&z||!w", "'\\n\\t\\\\'",
    "https://example.org/a?b=c&d=%20#e", "user@example.org", "1e-9", "0b1010_0011", "3.14159", "v1.2.3-rc.4+build",
    "camelCaseName", "snake_case_name", "SCREAMING_CASE", "kebab-case", "$HOME/.config", "C:\\Users\\me", "@property",
]
WORDS = [
    "the", "The", "THE", "house", "I'm", "we'll", "they've", "he'd", "it's", "DON'T", "can’t", "naïve", "Straße", "École",
    "señor", "Ångström", "œuvre", "привет", "Ёлка", "мир", "γειά", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "한국어", "안녕",
    "Việt", "İstanbul", "ǅungla", "ﬁn", "e\u0301te\u0301", "1st", "2nd", "10", "100", "1000", "12345678", "½", "²", "Ⅳ", "٣",
]
CJK = "的一是不了人我在有他这中大来上国個說時為子你生会着那得于里後自之年的過家日本語東京都ひらがなカタカナー、。「」！？〇々한글조선"
EMOJI = [
    "🙂", "😂", "🎉", "🚀", "❤️", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "🇯🇵", "1️⃣", "☃", "✨", "🧑🏿‍🚀", "𝕏", "𓀀", "𠮷",
]
SPACES = [
    " ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t ", "\n", "\n\n", "\r\n", "\n    ", "\u00a0", "\u3000", "\u2009",
    "\u200b", "\u2028", "\ufeff", "\v", "\f", "\u0085",
]
MARKS = list(".,;:!?…-–—'\"()[]{}<>«»“”‘’/\\|@#$%^&*_+=~`§°€£¥©™") + ["...", "--", "->", "=>", "::", "!!!", "``", "```"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|", "|>", "<repo_name>", "<file_sep>", "<think>", "</s>"]


def code_point(rng):
    while True:
        value = rng.choice([rng.randrange(1, 0x300), rng.randrange(0x300, 0x3000), rng.randrange(1, 0x20000)])
        if not 0xD800 <= value <= 0xDFFF:
            return chr(value)


def piece(rng):
    kind = rng.randrange(10)
    if kind == 0:
        return rng.choice(CODE)
    if kind in (1, 2):
        return rng.choice(WORDS)
    if kind == 3:
        return "".join(rng.choice(CJK) for _ in range(rng.randrange(1, 12)))
    if kind == 4:
        return rng.choice(EMOJI) * rng.randrange(1, 4)
    if kind in (5, 6):
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 5)))
    if kind == 7:
        return "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 4)))
    if kind == 8:
        return str(rng.randrange(10 ** rng.randrange(1, 12)))
    return rng.choice(SPECIAL) if rng.random() < 0.2 else "".join(code_point(rng) for _ in range(rng.randrange(1, 6)))


def line(rng):
    joint = rng.choice(["", "", " ", "  "])
    return joint.join(piece(rng) for _ in range(rng.randrange(1, 14)))


def books(path):
    with open(path, encoding="utf-8") as file:
        verses = [json.loads(verse) for verse in file]
    bible = "\n".join(verse["text"] for verse in verses if verse["book"] in ("Ruth", "Esther"))
    python = "\n\n".join(topics[key] for key in sorted(topics))[:60_000]
    return [{"name": "Ruth and Esther", "text": bible}, {"name": "pydoc topics", "text": python}]


def main(kjv, out):
    rng = random.Random(SEED)
    lines = [line(rng) for _ in range(LINES)]
    texts = {"question": QUESTION, "prompts": PROMPTS, "lines": lines, "books": books(kjv)}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(texts, file, ensure_ascii=False)


main(*sys.argv[1:])
