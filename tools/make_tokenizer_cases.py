"""Test tokenizers and their expected results, from the `tokenizers` library (pip install tokenizers).

    make_tokenizer_cases.py write [--family NAME]      tests/data/tokenizer/*.json and *.cases.json
    make_tokenizer_cases.py compare DUMP [--count N] [--seed S] [--family NAME] [--file TOKENIZER.JSON]
    make_tokenizer_cases.py convert VOCABULARY OUT     a tokenizer.json of a tekken.json or o200k .tiktoken file

`write` trains a small tokenizer of each family on text that this file generates, and a sample of encodings and decodings
of generated strings; and hashes of what NFC and each Split pattern make of every code point. `compare` runs the same
generator for N strings a family, or for real tokenizers (`--file`), and asks both the library and our C code (DUMP is the
built tests/tokenizer_dump); without --family and --file it compares NFC and the matches of each pattern too. The exit
status is 1 if anything differs. Last run with tokenizers 0.23.3.
"""
import argparse
import base64
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "tokenizer"
SAMPLE_STRINGS = 130
SAMPLE_ID_LISTS = 30
SAMPLE_SEED = 20

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
WORDS = r"(?i:" + CONTRACTIONS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WHITESPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
JS_CONTRACTIONS = "'s|'S|'t|'T|'re|'rE|'Re|'RE|'ve|'vE|'Ve|'VE|'m|'M|'ll|'lL|'Ll|'LL|'d|'D"
NO_WORD, CAPITALS, SMALL = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def o200k(tail, digits):
    words = NO_WORD + CAPITALS + "*" + SMALL + "+" + tail + "|" + NO_WORD + CAPITALS + "+" + SMALL + "*" + tail
    return words + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + WHITESPACE


DEEPSEEK_LETTERS = (  # the characters that NFC would change are escaped
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"
    "Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK = [r"[\r\n]", r"\s?[" + DEEPSEEK_LETTERS + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    + "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n]*"
    + r"|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+",
]
PATTERNS = {
    "gpt2": CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen": WORDS + r"\p{N}" + REST,
    "llama3": WORDS + r"\p{N}{1,3}" + REST,
    "o200k": o200k("(?i:" + CONTRACTIONS + ")?", r"\p{N}{1,3}"),
    "o200k of JavaScript": o200k("(" + JS_CONTRACTIONS + ")?", r"\p{N}{1,3}"),
    "tekken": o200k("", r"\p{N}"),
    **{f"deepseek {i}": pattern for i, pattern in enumerate(DEEPSEEK)},
    **{f"deepseek3 {i}": pattern for i, pattern in enumerate(DEEPSEEK3)},
    "letters with a space": r"\s?\p{L}+",
    "punctuation with a space": r"\s?\p{P}+",
    "a symbol, mark or control": r"[\p{S}\p{M}\t\-\]a-c\^-`]",
}

# --- generated text ------------------------------------------------------------------------------

SCRIPTS = [  # (first, last) of the letters of each script that the generator draws from
    (0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0xFF), (0x100, 0x17F), (0x1E00, 0x1EFF), (0x370, 0x3FF),
    (0x400, 0x45F), (0x531, 0x587), (0x5D0, 0x5EA), (0x620, 0x64A), (0x710, 0x72F), (0x780, 0x7B1), (0x905, 0x94D),
    (0x985, 0x9CD), (0xA05, 0xA4D), (0xB85, 0xBCD), (0xC05, 0xC4D), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF40, 0xFBC),
    (0x1000, 0x104F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FF), (0x1400, 0x167F),
    (0x1780, 0x17E9), (0x1820, 0x1878), (0x3041, 0x309F), (0x30A0, 0x30FF), (0x3105, 0x312F), (0x3131, 0x318E),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xA000, 0xA48C), (0x10400, 0x1044F), (0x12000, 0x1236E), (0x1D400, 0x1D7FF),
    (0x20000, 0x2A6DF), (0x1F300, 0x1FAFF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFF00, 0xFFEF), (0x2460, 0x24FF),
]  # fmt: skip
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x20, 0x20, 0x20, 0xA, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000, 0x180E, 0x200B, 0x1C, 0x1D, 0x1E, 0x1F, 0xFEFF, 0x2060]  # fmt: skip
MARKS = [*range(0x300, 0x370), *range(0x591, 0x5BE), *range(0x64B, 0x660), 0x93C, 0x94D, 0x9BC, 0xBBE, 0xE38, 0xE48, 0xF71,
         0xF72, 0xF74, 0x3099, 0x309A, *range(0x20D0, 0x20F1), 0x1D165, 0x1D16E, 0xFE20, 0x345, 0x338, 0x9FE, 0x1AC1,
         0x8D3, 0x1DF9, 0x11930, 0x11935, 0x11938, 0x1E136, 0x10EFD]  # fmt: skip
DIGITS = [0x30, 0x660, 0x6F0, 0x966, 0xE50, 0xFF10, 0x1D7CE]
CJK = [0x4E00, 0x4E2D, 0x65E5, 0x9FA5, 0x9FA6, 0x3400, 0x3041, 0x309F, 0x30A0, 0x30FB, 0x30FF, 0x3040, 0x3000, 0x3001, 0x3002, 0x3003,
       0xFF01, 0xFF0C, 0xFF1F, 0xAC00, 0xD7FF, 0x800, 0x2E80, 0x20000, 0x30, 0xFF11, 0x41, 0x20, 0x201C, 0x2018]  # fmt: skip
WORD_LIST = ("the of and to in is that it was for on are as with his they at be this have from or one had by word but not "
             "what all were we when your can said there use an each which she do how their if will up other about out many "
             "then them these so some her would make like him into time has look two more write go see number no way could "
             "people my than first water been call who oil its now find long down day did get come made may part over new "
             "sound take only little work know place year live me back give most very after thing our just name good "
             "sentence man think say great where help through much before line right too mean old any same tell boy follow "
             "came want show also around form three small set put end does another well large must big even such because "
             "turn here why ask went men read need land different home us move try kind hand picture again change off play "
             "spell air away animal house point page letter mother answer found study still learn should world").split()


def any_code_point(r):
    plane = r.choice([0, 0, 0, 0, 1, 1, 2, 3, 14, 15, 16])
    while True:
        code = plane * 0x10000 + r.randrange(0x10000)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def script_word(r):
    first, last = r.choice(SCRIPTS)
    return "".join(chr(r.randint(first, last)) for _ in range(r.randint(1, 6)))


def contraction(r):
    mark = r.choice(["'", "'", "'", "’", "''"])
    tail = r.choice(["s", "t", "re", "ve", "m", "ll", "d", "\u017f", "x", "r", "l", "\ufb05", "K", "\u212a", "sé", "lL"])
    return r.choice(["", "we", " I", "1", "\n", "!"]) + mark + "".join(r.choice([c.lower(), c.upper()]) for c in tail)


def combining(r):
    base = r.choice(["a", "e", "A", "o", "u", "s", "ệ", "ñ", "Å", "가", "\u1100\u1161", "か", "क", " ", "", "ά", "ṩ"])
    return base + "".join(chr(r.choice(MARKS)) for _ in range(r.choice([1, 1, 2, 3, 5, 40])))


def jamo(r):
    text = ""
    for _ in range(r.randint(1, 4)):
        text += chr(r.randint(0x1100, 0x1113)) + chr(r.randint(0x1161, 0x1176))
        text += chr(r.randint(0x11A7, 0x11C3)) if r.random() < 0.6 else ""
    return text


def mixed_case(r):
    """Words such as a camelCase name, with titlecase and caseless letters and marks among them."""
    letters = "aabcxyzABCDXYZéÉǅǈʰªßſKİ\u0301\u0308\u20ddا日ー"
    text = "".join(r.choice(letters) for _ in range(r.randint(1, 8)))
    return r.choice(["", "", " ", "_", "\u0301", "\n", "/", "1"]) + text + r.choice(["", "", "'s", "'LL", "'ſ", "/", "./\n/", " "])


def special_text(r, specials):
    text = r.choice(specials)
    how = r.random()
    if how < 0.15:
        return text[: r.randint(1, len(text))]
    if how < 0.25:
        return text[r.randint(0, len(text) - 1) :]
    if how < 0.5:
        return r.choice(["", " ", "  ", "a", "\n", "\t ", "_", "é"]) + text + r.choice(["", " ", "  ", "b", "\n", " \r\n", "1"])
    return text


def piece(r, specials):
    kind = r.randrange(18)
    if kind <= 2:
        return " ".join(r.choice(WORD_LIST) for _ in range(r.randint(1, 5)))
    if kind == 3:
        return script_word(r)
    if kind == 4:
        return contraction(r)
    if kind == 5:
        return "".join(chr(r.choice(SPACES)) for _ in range(r.randint(1, 7)))
    if kind == 6:
        return "".join(any_code_point(r) for _ in range(r.randint(1, 5)))
    if kind == 7:
        return "".join(chr(r.choice([r.randrange(0x20), r.randrange(0x7F, 0xA1)])) for _ in range(r.randint(1, 4)))
    if kind == 8:
        return combining(r)
    if kind == 9:
        return jamo(r)
    if kind == 10:
        return special_text(r, specials)
    if kind == 11:
        base = r.choice(DIGITS)
        return "".join(chr(base + r.randrange(10)) for _ in range(r.randint(1, 9))) + r.choice(["", "½", "²", "Ⅷ", ".", "px"])
    if kind == 12:
        return "".join(r.choice("!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`\"'") for _ in range(r.randint(1, 6))) + r.choice(["", "\n", "\r\n\n"])
    if kind == 13:
        return r.choice([" ", "  ", "\n", "\n\n", "\r\n", "\t", "▁", "▁▁", " ▁", "<0x41>", "<0xE4>", "Ġ", "ĠĠ", "Ċ"])
    if kind == 14:
        return r.choice(["👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "🏴‍☠️", "e\u0301", "ﷺ", "ẛ̣", "Å", "가", "ｶﾞ", "\u200d", "\u202e"])
    if kind == 15:
        return r.choice([" ", "", " "]) + script_word(r) + r.choice(["", " ", "\n"])
    if kind == 16:
        return mixed_case(r)
    return "".join(chr(r.choice(CJK)) for _ in range(r.randint(1, 6)))


def make_text(r, family):
    return "".join(piece(r, family["specials"]) for _ in range(r.choice([1, 1, 2, 3, 5, 8])))


def damage(r, text):
    """Bytes that are mostly not UTF-8."""
    data = bytearray(text.encode())
    for _ in range(r.randint(1, 4)):
        at = r.randint(0, len(data))
        if r.random() < 0.5 and data:
            del data[min(at, len(data) - 1)]
        else:
            data[at:at] = bytes(r.choice([0x80, 0xC0, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0xF4, 0x90, 0xFF, r.randrange(256)]) for _ in range(r.randint(1, 3)))
    return bytes(data)


def training_text(seed):
    r = random.Random(seed)
    common = [script_word(random.Random(i)) for i in range(60)]
    for _ in range(3000):
        words = [r.choice(WORD_LIST if r.random() < 0.75 else common) for _ in range(r.randint(3, 12))]
        line = r.choice([" ", " ", " ", "  ", ", ", "\n", "_"]).join(words)
        yield line + r.choice([".", "!\n", "?\n\n", " 2024", " 12345", "'s", "'ll go", "    return x;\n", "é", "\r\n"])


# --- the families --------------------------------------------------------------------------------


def train(tokenizer, vocab_size, byte_level, specials, **options):
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False, **options)
    tokenizer.train_from_iterator(training_text(7), trainer)


def rebuild(tokenizer, added, **model):
    """The trained tokenizer with other added tokens and model options; added tokens are dicts or contents."""
    data = json.loads(tokenizer.to_str())
    data["model"].update(model)
    vocab = data["model"]["vocab"]
    data["added_tokens"] = []
    next_id = len(vocab)
    for token in added:
        token = {"content": token} if isinstance(token, str) else token
        if token["content"] not in vocab:
            token["id"] = next_id
            next_id += 1
        else:
            token["id"] = vocab[token["content"]]
        defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        data["added_tokens"].append({**defaults, **token})
    return data


def second_merges(data, count):
    """Adds merges that make existing tokens from other parts, and repeats some: the order must not matter less."""
    r = random.Random(3)
    vocab = data["model"]["vocab"]
    merges = [tuple(m) for m in data["model"]["merges"]]
    known = set(merges)
    extra = []
    for token in vocab:
        for cut in range(1, len(token)):
            pair = (token[:cut], token[cut:])
            if pair[0] in vocab and pair[1] in vocab and pair not in known:
                extra.append(pair)
    for pair in r.sample(extra, min(count, len(extra))) + r.sample(merges, 10):
        merges.insert(r.randint(0, len(merges)), pair)
    data["model"]["merges"] = [list(m) for m in merges]


def legacy_merges(data):
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]


def template(data, before, after=()):
    vocab = {**data["model"]["vocab"], **{t["content"]: t["id"] for t in data["added_tokens"]}}
    special = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
    tail = [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    return {
        "type": "TemplateProcessing",
        "single": special + [{"Sequence": {"id": "A", "type_id": 0}}] + tail,
        "pair": special + [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in [*before, *after]},
    }


def split_byte_level(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def make_qwen():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = split_byte_level(PATTERNS["qwen"])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", {"content": "<think>", "special": False}, {"content": "</think>", "special": False}]
    data = rebuild(t, added)
    legacy_merges(data)
    return data


def make_llama3():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = split_byte_level(PATTERNS["llama3"])
    t.decoder = decoders.ByteLevel()
    train(t, 800, True, [])
    data = rebuild(t, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"], ignore_merges=True)
    # Tokens that no merge reaches, so that ignore_merges shows.
    data["model"]["merges"] = [m for i, m in enumerate(data["model"]["merges"]) if i % 9 != 8]
    bos = template(data, ["<|begin_of_text|>"])
    data["post_processor"] = {"type": "Sequence", "processors": [json.loads(processors.ByteLevel(trim_offsets=False).__getstate__()), bos]}
    return data


def make_gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    data = rebuild(t, ["<|endoftext|>"])
    second_merges(data, 40)
    return data


BYTES = [f"<0x{b:02X}>" for b in range(256)]


def sentencepiece(vocab_size, **options):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(t, vocab_size, False, ["<unk>", "<s>", "</s>", *BYTES], limit_alphabet=110, **options)
    return t


def strip_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def make_llama2():
    t = sentencepiece(800)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = None
    t.decoder = strip_decoder()
    data = rebuild(t, ["<unk>", "<s>", "</s>", {"content": "<tool>", "special": False, "normalized": True}])
    second_merges(data, 30)
    data["post_processor"] = template(data, ["<s>"])
    return data


def make_mistral():
    t = sentencepiece(750)
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = strip_decoder()
    data = rebuild(t, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    data["post_processor"] = template(data, ["<s>"], ["</s>"])
    return data


def make_metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    train(t, 600, False, ["<unk>"], limit_alphabet=90)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), t.pre_tokenizer])
    return rebuild(t, ["<unk>", "<sep>"])


def make_added():
    """Added tokens with every flag, a prefix space, contiguous digits."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    train(t, 500, True, [])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), t.pre_tokenizer])
    return rebuild(
        t,
        [
            "<s>",
            "<s>s",
            "<s><s>",
            {"content": "<left>", "lstrip": True},
            {"content": "<right>", "rstrip": True},
            {"content": "<both>", "lstrip": True, "rstrip": True, "special": False},
            {"content": "word", "single_word": True, "special": False},
            {"content": "A\u030angstro\u0308m", "normalized": True, "special": False},
            {"content": "caf\u00e9", "normalized": True, "special": True},
            {"content": "cafe\u0301s", "normalized": False, "special": True},
            {"content": "le\u0301", "normalized": True, "special": True, "single_word": True},
            {"content": "\u3000", "rstrip": True, "special": False},
            {"content": "\n\n", "lstrip": True, "rstrip": True, "special": False},
        ],
    )


def make_o200k():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = split_byte_level(PATTERNS["o200k"])
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    return rebuild(t, ["<|startoftext|>", "<|endoftext|>", "<|start|>", "<|message|>", "<|end|>"])


def make_tekken():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = split_byte_level(PATTERNS["tekken"])
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    data = rebuild(t, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ignore_merges=True)
    data["post_processor"] = template(data, ["<s>"])
    return data


def isolated(patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def make_deepseek():
    """V2 and before: letters, punctuation and ideographs by their code points."""
    t = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([*isolated(DEEPSEEK), pre_tokenizers.Digits(individual_digits=True), byte_level])
    t.normalizer = normalizers.Sequence([])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    return rebuild(t, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", {"content": "<|fim|>", "special": False, "normalized": True}])


def make_deepseek3():
    t = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([*isolated(DEEPSEEK3), byte_level])
    t.decoder = decoders.ByteLevel()
    train(t, 700, True, [])
    data = rebuild(t, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"])
    data["post_processor"] = template(data, ["<｜begin▁of▁sentence｜>"])
    return data


def make_gemma():
    """SentencePiece without a space in front; a Split that finds nothing, since the normaliser takes the spaces away."""
    t = sentencepiece(800)
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    runs = [{"content": c * n, "special": False} for c in ("\n", "▁", "\t") for n in (1, 2, 3) if c * n != "▁"]
    data = rebuild(t, ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", *runs])
    data["post_processor"] = template(data, ["<bos>"])
    return data


def make_behaviors():
    """Splits with each behaviour, one inside the other."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "removed"),
            pre_tokenizers.Split(Regex(r"\p{S}"), "contiguous"),
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[.,;!?]"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[\t\p{M}]"), "contiguous", invert=True),
            pre_tokenizers.Split("th", "merged_with_next", invert=True),
            pre_tokenizers.Split("e", "merged_with_previous", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    splits = t.pre_tokenizer
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    train(t, 900, True, [])
    t.pre_tokenizer = splits
    return rebuild(t, ["<|endoftext|>"])


FAMILIES = {
    "qwen": make_qwen,
    "llama3": make_llama3,
    "gpt2": make_gpt2,
    "llama2": make_llama2,
    "mistral": make_mistral,
    "metaspace": make_metaspace,
    "added": make_added,
    "o200k": make_o200k,
    "tekken": make_tekken,
    "deepseek": make_deepseek,
    "deepseek3": make_deepseek3,
    "gemma": make_gemma,
    "behaviors": make_behaviors,
}


def load_tokenizer(path, name):
    """What the comparison needs to know of a tokenizer."""
    data = json.loads(path.read_text())
    specials = [t["content"] for t in data["added_tokens"]] or ["<s>"]
    if name == "added":
        specials += ["\u00c5ngstr\u00f6m", "cafe\u0301", "l\u00e9", "aword", "word"]
    size = max([*data["model"]["vocab"].values(), *(t["id"] for t in data["added_tokens"])]) + 1
    return {"name": name, "path": path, "specials": specials, "size": size, "library": Tokenizer.from_file(str(path))}


def load_family(name):
    return load_tokenizer(DATA / f"{name}.json", name)


def make_requests(family, r, count):
    """(text or bytes, add_special, plain_special) for each string."""
    requests = []
    for _ in range(count):
        text = make_text(r, family)
        data = damage(r, text) if r.random() < 0.08 else text.encode()
        requests.append((data, r.random() < 0.5, r.random() < 0.15))
    return requests


def library_encode(family, requests):
    t = family["library"]
    ids = [None] * len(requests)
    for add in (False, True):
        for plain in (False, True):
            which = [i for i, q in enumerate(requests) if q[1] == add and q[2] == plain]
            t.encode_special_tokens = plain
            encoded = t.encode_batch_fast([requests[i][0].decode(errors="replace") for i in which], add_special_tokens=add)
            for i, e in zip(which, encoded):
                ids[i] = e.ids
    t.encode_special_tokens = False
    return ids


def random_ids(family, r):
    """Ids at random, with runs of tokens that are parts of characters or bytes."""
    ids = []
    for _ in range(r.randint(1, 6)):
        low = r.random() < 0.5
        ids += [r.randrange(min(260, family["size"]) if low else family["size"] + 3) for _ in range(r.randint(1, 6))]
    return ids


# --- every code point ----------------------------------------------------------------------------

CODES_A_HASH = 0x2000
MARKED_CODES = 0x20000  # all marks of a canonical class other than 0 are below
HASHED_PATTERNS = ["llama3", "o200k", "deepseek3 2", "a symbol, mark or control"]
# One mark of each canonical class, the highest class first.
CLASS_MARKS = {unicodedata.ucd_3_2_0.combining(chr(c)): chr(c) for c in range(0x300, 0x20000)}
CLASS_MARKS = "".join(CLASS_MARKS[c] for c in sorted(CLASS_MARKS, reverse=True) if c != 0)


def nfc_text(code):
    c = chr(code)
    return f"a{c}\u0301\u0345{c}\u0334{c}{c}\u0328\u1161\u11a8"


def split_text(code):
    c = chr(code)
    return f"a{c}1{c}.{c} {c}'{c}x'r{c}A{c}B{c}b/{c}\n{c}\u0301{c}"


def code_point_hashes(texts, limit=0x110000):
    """CRC-32 of the bytes that `texts` gives for lists of code points, in groups of CODES_A_HASH."""
    groups = [range(first, first + CODES_A_HASH) for first in range(0, limit, CODES_A_HASH)]
    groups = [[code for code in group if not 0xD800 <= code < 0xE000] for group in groups]
    return [f"{zlib.crc32(texts(group)):08x}" for group in groups]


def library_matches(splitter, text):
    """Start and end of each match in bytes; the splitter drops what stands between them."""
    places = [0]
    for c in text:
        places.append(places[-1] + len(c.encode()))
    return [places[at] for _, span in splitter.pre_tokenize_str(text) for at in span]


def match_splitter(name):
    return pre_tokenizers.Split(Regex(PATTERNS[name]), "removed", invert=True)


def pack_matches(splitter, codes):
    return b"".join(struct.pack(f"<{len(m)}I", *m) for m in (library_matches(splitter, split_text(c)) for c in codes))


def word_bits(codes):
    """For each code point, whether it touches a token that wants to stand alone."""
    t = Tokenizer(models.BPE())
    t.add_tokens([AddedToken("word", single_word=True, normalized=False)])
    texts = [[chr(c) + "word", "word" + chr(c)] for c in codes]
    found = [[len(e.ids) for e in t.encode_batch_fast(pair)] for pair in texts]
    return bytes(byte for pair in found for byte in pair)


def write_code_points():
    nfc = normalizers.NFC().normalize_str
    hashes = {
        "nfc": code_point_hashes(lambda codes: "".join(nfc(nfc_text(c)) for c in codes).encode()),
        "classes": code_point_hashes(
            lambda codes: "".join(nfc("x" + CLASS_MARKS + chr(c) + CLASS_MARKS) for c in codes).encode(), MARKED_CODES
        ),
        "words": code_point_hashes(word_bits),
        "splits": {},
    }
    for name in HASHED_PATTERNS:
        splitter = match_splitter(name)
        result = code_point_hashes(lambda codes: pack_matches(splitter, codes))
        hashes["splits"][name] = {"regex": PATTERNS[name], "hashes": result}
        print(f"code points: {name}", flush=True)
    hashes["class_marks"] = CLASS_MARKS
    (DATA / "code_points.json").write_text(json.dumps(hashes, ensure_ascii=False, indent=0) + "\n")


def write(families):
    DATA.mkdir(parents=True, exist_ok=True)
    for name in families:
        make = FAMILIES[name]
        data = json.dumps(make(), ensure_ascii=False, separators=(",", ":"))
        (DATA / f"{name}.json").write_text(data + "\n")
        family = load_family(name)
        r = random.Random(SAMPLE_SEED)
        requests = make_requests(family, r, SAMPLE_STRINGS)
        requests = [q for q in requests if len(q[0]) <= 160]
        decode = family["library"].decode
        cases = []
        for (text, add, plain), ids in zip(requests, library_encode(family, requests)):
            try:
                shown = text.decode()
            except UnicodeDecodeError:
                shown = {"hex": text.hex()}
            cases.append([shown, add, plain, ids, decode(ids, skip_special_tokens=True), decode(ids, skip_special_tokens=False)])
        lists = [random_ids(family, r) for _ in range(SAMPLE_ID_LISTS)]
        decoded = [[ids, decode(ids, skip_special_tokens=True), decode(ids, skip_special_tokens=False)] for ids in lists]
        lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
        more = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in decoded)
        (DATA / f"{name}.cases.json").write_text('{"encode":[\n' + lines + '\n],\n"decode":[\n' + more + "\n]}\n")
        print(f"{name}: {len(data)} bytes, {family['size']} tokens, {len(cases)} strings, {len(decoded)} id lists")


# --- comparing -----------------------------------------------------------------------------------


def ask(dump, path, requests):
    """Runs our code on (operation, number, payload) requests and yields its replies."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as result:
        for operation, number, payload in requests:
            source.write(struct.pack("<III", ord(operation), number, len(payload)) + payload)
        source.seek(0)
        subprocess.run([dump, str(path)], stdin=source, stdout=result, check=True)
        result.seek(0)
        for _ in requests:
            (length,) = struct.unpack("<I", result.read(4))
            yield result.read(length)


def pack_ids(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def show(family, what, source, ours, theirs):
    print(f"  {family} {what}: {ascii(source)}\n    ours    {ours}\n    library {theirs}")


def compare_tokenizer(dump, family, count, seed):
    name = family["name"]
    r = random.Random(seed)
    requests = make_requests(family, r, count)
    expected = library_encode(family, requests)
    replies = ask(dump, family["path"], [("e", add + 2 * plain, text) for text, add, plain in requests])
    wrong = 0
    for request, ids, reply in zip(requests, expected, replies):
        ours = list(struct.unpack(f"<{len(reply) // 4}i", reply))
        if ours != ids:
            wrong += 1
            if wrong <= 5:
                show(name, "encode", request, ours, ids)
    lists = [ids for ids in expected if ids] + [random_ids(family, r) for _ in range(count // 2)]
    wrong_texts = 0
    for skip in (False, True):
        texts = family["library"].decode_batch(lists, skip_special_tokens=skip)
        for ids, text, reply in zip(lists, texts, ask(dump, family["path"], [("d", skip, pack_ids(i)) for i in lists])):
            if reply != text.encode():
                wrong_texts += 1
                if wrong_texts <= 5:
                    show(name, f"decode skip={skip}", ids, reply, text.encode())
    print(f"{name}: {len(requests)} strings encoded, {wrong} differ; {2 * len(lists)} decodings, {wrong_texts} differ", flush=True)
    return wrong + wrong_texts


def compare_splits(dump, texts):
    """The matches of each pattern, which ids alone would not always show."""
    wrong = 0
    for name, regex in PATTERNS.items():
        splitter = match_splitter(name)
        count = 0
        head = regex.encode() + b"\0"
        for text, reply in zip(texts, ask(dump, DATA / "gpt2.json", [("s", 0, head + t.encode()) for t in texts])):
            ours = list(struct.unpack(f"<{len(reply) // 4}I", reply))
            theirs = library_matches(splitter, text)
            if ours != theirs:
                count += 1
                if count <= 5:
                    show(name, "split", text, ours, theirs)
        print(f"pattern {name}: {len(texts)} texts, {count} differ", flush=True)
        wrong += count
    return wrong


def mark_sequence(r):
    """Marks, letters that compose and what they decompose into, old and new, in any order."""
    pool = [*MARKS, *(ord(m) for m in CLASS_MARKS)]
    text = ""
    for _ in range(r.randint(1, 12)):
        kind = r.randrange(8)
        if kind < 4:
            text += chr(r.choice(pool))
        elif kind == 4:
            text += r.choice(["a", "e", "ệ", "Å", "か", "\u1100", "\u1161", "\u11a8", "가", "\u11a7", "क", "ড", "ཱ"])
        elif kind == 5:
            text += chr(r.choice([*range(0xC0, 0x180), *range(0x1E00, 0x2000), *range(0x900, 0xE00), *range(0x11000, 0x11F50)]))
        else:
            text += any_code_point(r)
    return text


def compare_nfc(dump, texts):
    nfc = normalizers.NFC().normalize_str
    wrong = 0
    for text, reply in zip(texts, ask(dump, DATA / "gpt2.json", [("n", 0, t.encode()) for t in texts])):
        if reply != nfc(text).encode():
            wrong += 1
            if wrong <= 5:
                show("NFC", "of", text, ascii(reply.decode()), ascii(nfc(text)))
    print(f"NFC: {len(texts)} texts, {wrong} differ", flush=True)
    return wrong


# --- real vocabularies ---------------------------------------------------------------------------


def read_ranks(path):
    """Tokens as bytes in the order of their ranks, and the number of ids that stand before them."""
    if path.suffix == ".json":
        data = json.loads(path.read_text())
        special = data["config"]["default_num_special_tokens"]
        kept = data["vocab"][: data["config"]["default_vocab_size"] - special]
        return [base64.b64decode(t["token_bytes"]) for t in kept], special
    lines = [line.split() for line in path.read_bytes().splitlines() if line]
    return [base64.b64decode(token) for token, _ in lines], 0


def convert(path, out):
    """Byte-level BPE of ranked tokens: every pair of tokens that makes a token merges, at the rank of the result."""
    tokens, special = read_ranks(path)
    tekken = path.suffix == ".json"
    characters = byte_characters()
    text = ["".join(characters[b] for b in token) for token in tokens]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = sorted((ranks[a], ranks[b]) for a, b in cuts if a in ranks and b in ranks)
        merges += [[text[a], text[b]] for a, b in pairs]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = split_byte_level(PATTERNS["tekken" if tekken else "o200k"])
    t.decoder = decoders.ByteLevel()
    data = json.loads(t.to_str())
    names = [f"<SPECIAL_{i}>" for i in range(special)]
    data["model"].update(vocab={t: i for i, t in enumerate([*names, *text])}, merges=merges, ignore_merges=True)
    added = names if tekken else ["<|endoftext|>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data["added_tokens"] = [{"id": i if tekken else len(text), "content": name, **flags} for i, name in enumerate(added)]
    out.write_text(json.dumps(data, ensure_ascii=False))
    print(f"{out}: {len(text)} tokens, {len(merges)} merges")


def byte_characters():
    """The character that stands for each byte: printable Latin-1 for itself, the others from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in own else chr(next(others)) for b in range(256)]


def compare(args):
    families = [load_family(name) for name in args.family or ([] if args.file else FAMILIES)]
    families += [load_tokenizer(path, str(path)) for path in args.file or []]
    wrong = sum(compare_tokenizer(args.dump, family, args.count, args.seed) for family in families)
    if not args.family and not args.file:
        r = random.Random(args.seed + 1)
        family = {"specials": ["<|endoftext|>"]}
        wrong += compare_splits(args.dump, [make_text(r, family) for _ in range(args.count)])
        wrong += compare_nfc(args.dump, [mark_sequence(r) for _ in range(args.count)])
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    write_mode = modes.add_parser("write")
    write_mode.add_argument("--family", choices=[*FAMILIES, "code points"], action="append")
    compare_mode = modes.add_parser("compare")
    compare_mode.add_argument("dump", help="the built tests/tokenizer_dump")
    compare_mode.add_argument("--count", type=int, default=100000)
    compare_mode.add_argument("--seed", type=int, default=1)
    compare_mode.add_argument("--family", choices=list(FAMILIES), action="append")
    compare_mode.add_argument("--file", type=pathlib.Path, action="append", help="a real tokenizer.json")
    convert_mode = modes.add_parser("convert")
    convert_mode.add_argument("source", type=pathlib.Path)
    convert_mode.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    if args.mode == "compare":
        return 1 if compare(args) else 0
    if args.mode == "convert":
        convert(args.source, args.out)
        return 0
    wanted = args.family or [*FAMILIES, "code points"]
    write([name for name in FAMILIES if name in wanted])
    if "code points" in wanted:
        write_code_points()
    return 0


if __name__ == "__main__":
    sys.exit(main())
