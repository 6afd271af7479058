#!/usr/bin/env python3
"""Lockstep's tokenizers against Hugging Face's, id for id.

BERT: every line of the data (emotion-zh with the Chinese vocabulary, tinyshakespeare with the English one; left out where they are
not there), every character of Unicode between letters, and fuzzed texts of a million characters; cased and uncased, all settings of
the normalizer, special tokens and added tokens in the text, pairs, truncation, tokenizer.json, decoding. Byte-level BPE: vocabularies
trained here on the same texts, as vocab.json with merges.txt and as tokenizer.json; encoding and decoding. The forms of Llama 3
(its expression, whole words before merges) and of Llama 2 (SentencePiece's marks and bytes, in three settings), trained likewise. Needs the packages
transformers and tokenizers; exit status 77 where they are missing.

    tests/oracle/tokenizer_parity.py [--program build/release/bin/tests/tokenizer_parity] [--data ../shared/data] [--seed 1]
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertTokenizer
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

WORDS = """the quick brown fox unaffable tokenization embeddings don't I'm we'll it's naïve café Ångström ΑΣΟΣ İstanbul ǅ ß ﬁ straße
今天天气很好 你好，世界！ 東京 서울 한국어 ไทย हिन्दी العربية עברית Ελληνικά русский 1,234.56 3.14 https://example.com/a?b=c ... ——""".split()
SPECIALS = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "[cls]", "[ MASK ]", "[", "]", "##ing", "#"]


def random_text(random_, length):
    """Characters and words of many kinds; about `length` characters."""
    pieces, count = [], 0
    while count < length:
        kind = random_.randrange(12)
        if kind < 3:
            piece = "".join(random_.choice("abcdefghijklmnopqrstuvwxyzABCDEFXYZ0123456789") for _ in range(random_.randint(1, 12)))
        elif kind == 3:
            piece = "".join(chr(random_.randint(0x4E00, 0x9FFF)) for _ in range(random_.randint(1, 6)))
        elif kind == 4:
            piece = random_.choice(" \t\n\r\u3000\u00a0\u2028\u200b\u0085\x00\ufffd\u00ad") * random_.randint(1, 3)
        elif kind == 5:
            piece = "".join(chr(random_.choice([*range(0x21, 0x30), *range(0x2010, 0x2060), *range(0x3000, 0x3020)])) for _ in range(2))
        elif kind == 6:  # letters with marks, some of which stay and change places
            marks = [*range(0x300, 0x370), 0x1D165, 0x1D16D, 0x302E, 0x1B44, 0x93C, 0x94D, 0x8D4, 0x1E000, 0x1E94A, 0x16FF0]
            piece = random_.choice("aeéǖ가ក한") + "".join(chr(random_.choice(marks)) for _ in range(random_.randint(1, 5)))
        elif kind == 7:
            piece = random_.choice(WORDS)
        elif kind == 8:
            piece = random_.choice(SPECIALS)
        elif kind == 9:  # any block
            start = random_.choice([*range(0, 0x3400, 0x80), 0xA000, 0xA640, 0xA720, 0xAC00, 0xF900, 0xFB00, 0xFE00, 0x10000, 0x10400,
                                    0x11000, 0x16A00, 0x1D100, 0x1D400, 0x1E800, 0x1E900, 0x1F300, 0x20000, 0x2F800, 0xE0000])
            piece = "".join(chr(start + random_.randrange(0x100)) for _ in range(random_.randint(1, 5)))
        elif kind == 10:
            c = random_.randrange(0x110000 - 0x800)
            piece = chr(c + 0x800 if c >= 0xD800 else c)
        else:
            piece = " "
        if random_.randrange(200) == 0:
            piece *= random_.randint(10, 120)
        pieces.append(piece)
        count += len(piece)
    return "".join(pieces)


def fuzzed(seed, characters):
    random_ = random.Random(seed)
    texts, count = [], 0
    while count < characters:
        texts.append(random_text(random_, random_.choice([3, 10, 40, 200])))
        count += len(texts[-1])
    return texts


def every_character():
    """Each character alone, between letters, and after a mark that could change places with it."""
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = []
    for i in range(0, len(codes), 16):
        texts.append(" ".join(f"{chr(c)} a{chr(c)}b \U0001D16D{chr(c)}\U0001D165" for c in codes[i:i + 16]))
    return texts


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def run(self, kind, model, what, records, *options):
        """records: str, bytes or None; returns bytes each."""
        given, made = os.path.join(self.folder, "in"), os.path.join(self.folder, "out")
        with open(given, "wb") as f:
            for record in records:
                data = record.encode() if isinstance(record, str) else record
                f.write(struct.pack("<i", -1) if data is None else struct.pack("<i", len(data)) + data)
        subprocess.run([self.path, kind, model, what, given, made, *map(str, options)], check=True)
        out, at = [], 0
        with open(made, "rb") as f:
            data = f.read()
        while at < len(data):
            length = struct.unpack_from("<i", data, at)[0]
            out.append(data[at + 4:at + 4 + length])
            at += 4 + length
        return out


def ids_of(record):
    return list(struct.unpack(f"<{len(record) // 4}i", record))


def packed(ids):
    return struct.pack(f"<{len(ids)}i", *ids)


def check(what, inputs, found, expected):
    if len(found) != len(expected):
        sys.exit(f"{what}: {len(found)} results for {len(expected)} texts")
    for given, ours, theirs in zip(inputs, found, expected):
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            sys.exit(f"{what}: differs on {given!r}\n at {at}: ours   {ours[at:at + 12]!r}\n      theirs {theirs[at:at + 12]!r}")
    size = sum(len(text) for text in inputs if isinstance(text, str))
    print(f"{what}: {len(inputs):,} texts, {size:,} characters, the same", flush=True)


def check_ids(program, kind, name, model, oracle, texts):
    found = [ids_of(r) for r in program.run(kind, model, "ids", texts)]
    expected = [e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)]
    check(f"{name}, ids", texts, found, expected)


def check_normalized(program, name, model, oracle, texts):
    found = [r.decode() for r in program.run("bert", model, "normalize", texts)]
    check(f"{name}, normalized", texts, found, [oracle.normalizer.normalize_str(t) for t in texts])


def check_pairs(program, name, model, oracle, texts, max_length, strategy):
    random_ = random.Random(max_length)
    pairs = [random_.choice(texts) if random_.randrange(3) else None for _ in texts]
    records = [r for both in zip(texts, pairs) for r in both]
    out = program.run("bert", model, "encode", records, max_length, strategy)
    found = [(ids_of(a), ids_of(b)) for a, b in zip(out[::2], out[1::2])]
    oracle.enable_truncation(max_length, strategy=strategy)
    expected = []
    for text, pair in zip(texts, pairs):
        try:
            e = oracle.encode(text, pair)
            expected.append((e.ids, e.type_ids))
        except Exception:  # the library's own type: too short to be cut as asked
            expected.append(([-1], []))
    oracle.no_truncation()
    check(f"{name}, pairs cut to {max_length} {strategy}", texts, found, expected)


def check_decoding(program, kind, name, model, oracle, texts):
    ids = [oracle.encode(t).ids for t in texts]
    found = [r.decode() for r in program.run(kind, model, "decode", map(packed, ids))]
    check(f"{name}, decoded", texts, found, [oracle.decode(i) for i in ids])


def toy_vocabulary():
    """Letters, digits, some punctuation and Chinese, pieces of words: enough for ids to tell normal forms apart."""
    letters = [chr(c) for c in [*range(0x21, 0x7F), *range(0xA1, 0x250), *range(0x370, 0x400), *range(0x1100, 0x1200), *range(0x4E00, 0x4F00),
                                *range(0x300, 0x310), 0x1D165, 0x1D16D, 0x1D16E, 0x302E, 0x3002, 0xFF0C, 0xFF01]]
    pieces = ["ing", "ed", "tion", "the", "quick", "un", "aff", "able", "don", "token", "ization"]
    tokens = ["[SEP]", "[MASK]", "x[PAD]", "[UNK]", "[CLS]", "[PAD]", *letters, *(f"##{p}" for p in letters), *pieces, *(f"##{p}" for p in pieces)]
    return list(dict.fromkeys(tokens))


def bert_settings(program, folder, seed):
    """Every setting of the normalizer, with a vocabulary whose special tokens are in unusual places."""
    vocab = os.path.join(folder, "toy.txt")
    with open(vocab, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{token}\n" for token in toy_vocabulary())
    everything = every_character()
    for lower, strip, chinese, thorough in [(True, None, True, True), (False, None, True, False), (True, False, True, False),
                                            (False, True, True, False), (True, None, False, False), (False, False, False, True)]:
        model = os.path.join(folder, f"toy-{lower}-{strip}-{chinese}")
        os.mkdir(model)
        os.link(vocab, os.path.join(model, "vocab.txt"))
        settings = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
        with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(settings, f)
        oracle = BertTokenizer(vocab=vocab, **settings)._tokenizer
        name = f"toy, lower case {lower}, accents {strip}, Chinese {chinese}"
        for texts in [fuzzed(seed, 100_000)] + [everything] * thorough:
            check_normalized(program, name, model, oracle, texts)
            check_ids(program, "bert", name, model, oracle, texts)


def bert_json(program, folder, seed):
    """tokenizer.json, with added tokens of every kind."""
    vocab = os.path.join(folder, "toy.txt")
    oracle = BertTokenizer(vocab=vocab)._tokenizer
    oracle.add_tokens([AddedToken("Hello World", normalized=True), AddedToken("ÀX", normalized=True, single_word=True),
                       AddedToken("中文", normalized=True), AddedToken("quick", normalized=False, single_word=True),
                       AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
                       AddedToken("<lr>", lstrip=True, rstrip=True, normalized=True), AddedToken("ab"), AddedToken("abc", normalized=False)])
    oracle.add_special_tokens([AddedToken("<s p>", single_word=True), "[unused 1]"])
    model = os.path.join(folder, "tokenizer.json")
    oracle.save(model)
    extra = ["hello world", "Hello World", "HELLO  WORLD", "àx", "ÀX", "zàxz", "中文", "quick", "_quick", "équick", "<l>", "  <l>", "<r> ", " <r> \u3000",
             "\n<lr>\t", "ab", "abc", "abcd", "<s p>", "a<s p>", "-<s p>", "[unused 1]", "<LR>"]
    random_ = random.Random(seed)
    texts = []
    for text in fuzzed(seed, 60_000):
        parts = [text]
        for _ in range(random_.randint(1, 4)):
            parts.append(random_.choice(extra))
        random_.shuffle(parts)
        texts.append(random_.choice(["", " ", "x"]).join(parts))
    check_ids(program, "bert", "tokenizer.json with added tokens", model, oracle, texts)
    check_decoding(program, "bert", "tokenizer.json with added tokens", model, oracle, texts)
    for max_length in (3, 4, 7, 16, 33):
        for strategy in ("longest_first", "only_first", "only_second"):
            check_pairs(program, "tokenizer.json", model, oracle, texts[:400], max_length, strategy)


def bert_data(program, folder, data, seed, characters):
    """The vocabularies of the data on every line of the texts, and on a million fuzzed characters."""
    def lines(path):
        with open(os.path.join(data, path), encoding="utf-8") as f:
            return [text for text, _ in json.load(f)] if path.endswith(".json") else f.read().split("\n")
    for name, vocabulary, texts, lower in [("Chinese", "bert-base-chinese", "emotion-zh/train.json", True),
                                           ("Chinese, cased", "bert-base-chinese", "emotion-zh/train.json", False),
                                           ("English", "bert-base-uncased", "tinyshakespeare/input.txt", True)]:
        vocab = os.path.join(data, "vocab", f"{vocabulary}-vocab.txt")
        model = os.path.join(folder, name)
        os.mkdir(model)
        os.symlink(os.path.abspath(vocab), os.path.join(model, "vocab.txt"))
        with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"do_lower_case": lower}, f)
        oracle = BertTokenizer(vocab=vocab, do_lower_case=lower)._tokenizer
        texts = lines(texts)
        check_ids(program, "bert", f"{name}, {vocabulary}, the data", model, oracle, texts)
        check_ids(program, "bert", f"{name}, fuzzed", model, oracle, fuzzed(seed, characters))
        check_pairs(program, f"{name}, the data", model, oracle, texts[:2000], 24, "longest_first")
        check_decoding(program, "bert", f"{name}, the data", model, oracle, texts[:3000])


def data_texts(data):
    """The lines of the data, or fuzzed texts where it is not there."""
    try:
        with open(os.path.join(data, "tinyshakespeare/input.txt"), encoding="utf-8") as f:
            texts = f.read().split("\n")
        with open(os.path.join(data, "emotion-zh/train.json"), encoding="utf-8") as f:
            return texts + [text for text, _ in json.load(f)]
    except FileNotFoundError:
        return fuzzed(99, 200_000)


def byte_level(program, folder, data, seed, characters):
    """Vocabularies trained on the data: all bytes and some only; both forms of files."""
    texts = data_texts(data)
    for size, whole_alphabet, prefix in [(4000, True, False), (1200, False, True)]:
        oracle = Tokenizer(models.BPE())
        oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        oracle.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet() if whole_alphabet else []
        oracle.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
                                                              initial_alphabet=alphabet, max_token_length=24))
        name = f"byte-level BPE of {oracle.get_vocab_size():,} tokens"
        model = os.path.join(folder, f"bpe-{size}")
        os.mkdir(model)
        if whole_alphabet:
            oracle.model.save(model)
            fuzz = fuzzed(seed, characters) + every_character()[::7] + ["ab" * 5000, " " * 3000 + "x", "\n \n\t x  y   \n"]
        else:
            oracle.add_tokens([AddedToken("thou art", normalized=True), AddedToken("é", normalized=False), AddedToken("<l>", lstrip=True)])
            oracle.save(os.path.join(model, "tokenizer.json"))
            fuzz = [text + random.Random(i).choice([" thou art", "é", " <l>x", "Thou art"]) for i, text in enumerate(fuzzed(seed, 50_000))]
        fuzz = [text.replace("[MASK]", "<|endoftext|>").replace("[SEP]", " <|endoftext|> ") for text in fuzz]
        check_ids(program, "bpe", f"{name}, the data", model, oracle, texts)
        check_ids(program, "bpe", f"{name}, fuzzed", model, oracle, fuzz)
        check_decoding(program, "bpe", name, model, oracle, fuzz[:2000])
        # Ids in any order: bytes that are no text.
        random_ = random.Random(seed)
        ids = [[random_.randrange(oracle.get_vocab_size()) for _ in range(random_.randint(1, 30))] for _ in range(2000)]
        found = [r.decode() for r in program.run("bpe", model, "decode", map(packed, ids))]
        check(f"{name}, random ids decoded", ids, found, [oracle.decode(i) for i in ids])


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def check_begin(program, kind, name, model, oracle):
    [found] = program.run(kind, model, "begin", [])
    check(f"{name}, before a text", ["x"], [ids_of(found)], [oracle.encode("").ids])


def llama3(program, folder, data, seed, characters):
    """Its words, tokens that no merge makes, a token before every text."""
    texts = data_texts(data)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=3000, show_progress=False, max_token_length=24,
                                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    file = json.loads(trained.to_str())
    vocabulary = file["model"]["vocab"]
    words = sorted({piece for text in texts[:3000] for piece, _ in trained.pre_tokenizer.pre_tokenize_str(text)})
    for word in words[::7]:  # whole words, as merges would not make them
        vocabulary.setdefault(word, len(vocabulary))
    file["model"]["ignore_merges"] = True
    oracle = Tokenizer.from_str(json.dumps(file))
    oracle.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    begin = oracle.token_to_id("<|begin_of_text|>")
    oracle.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B", special_tokens=[("<|begin_of_text|>", begin)])])
    model = os.path.join(folder, "llama3.json")
    oracle.save(model)
    fuzz = fuzzed(seed, characters) + every_character()[::7] + every_character()[:40]
    random_ = random.Random(seed)
    pieces = ["'S", "'\u017f", "'LL", "'re", "' s", "\r\n", "\n", " \n ", "\t\n\r", "  ", " ", "\u00a0", "12", "3456789", "\u0663\u0664", "...", "!?\n\n", " -", "(x",
              "\tx", "\u3000\u4f60", "A", "\u00e9", "<|end_of_text|>", "_", "\u200d", "\u0301"]
    fuzz += ["".join(random_.choice(pieces) for _ in range(random_.randint(1, 12))) for _ in range(20_000)]
    name = f"Llama 3's form, {oracle.get_vocab_size():,} tokens"
    check_ids(program, "bpe", f"{name}, the data", model, oracle, texts)
    check_ids(program, "bpe", f"{name}, fuzzed", model, oracle, fuzz)
    check_decoding(program, "bpe", name, model, oracle, fuzz[:2000])
    check_begin(program, "bpe", name, model, oracle)


def sentence_piece(program, folder, data, seed, characters):
    """Llama 2's form: a normalizer that marks spaces, or a pre-tokenizer in its ways."""
    texts = data_texts(data)
    for setting in ("normalizer", "first", "always", "never"):
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if setting != "never" else [f"<0x{byte:02X}>" for byte in range(0, 256, 2)]
        trained = Tokenizer(models.BPE(unk_token="<unk>"))
        trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        trained.train_from_iterator([text[:200] for text in texts[:20000]], trainers.BpeTrainer(
            vocab_size=2500, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *bytes_], limit_alphabet=900, max_token_length=16))
        file = json.loads(trained.to_str())
        file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in ("<unk>", "<s>", "</s>")]
        file["model"].update(byte_fallback=True, fuse_unk=setting != "always")
        if setting != "normalizer":
            file["normalizer"] = None
            file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": setting, "split": False}
        oracle = Tokenizer.from_str(json.dumps(file))
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        oracle.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if setting != "never" else []))
        oracle.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
        oracle.add_tokens([AddedToken("thou art", normalized=True), AddedToken("<l>", lstrip=True, normalized=False)])
        model = os.path.join(folder, f"pieces-{setting}.json")
        oracle.save(model)
        random_ = random.Random(seed)
        fuzz = [text.replace("[MASK]", "</s>").replace("[SEP]", random_.choice([" <s> ", "thou art", " <l>x"])) for text in fuzzed(seed, characters // 3)]
        fuzz += every_character()[::13] + ["ab" * 5000, " " * 3000 + "x", "\u2581 \u2581x", "", " ", "</s>", " </s> a", "<0x41>", "a<0x41>b"]
        name = f"Llama 2's form, {setting}, {oracle.get_vocab_size():,} tokens"
        check_ids(program, "pieces", f"{name}, the data", model, oracle, texts[:15000])
        check_ids(program, "pieces", f"{name}, fuzzed", model, oracle, fuzz)
        check_decoding(program, "pieces", name, model, oracle, fuzz[:2000])
        ids = [[random_.randrange(oracle.get_vocab_size()) for _ in range(random_.randint(1, 30))] for _ in range(2000)]
        found = [r.decode() for r in program.run("pieces", model, "decode", map(packed, ids))]
        check(f"{name}, random ids decoded", ids, found, [oracle.decode(i) for i in ids])
        check_begin(program, "pieces", name, model, oracle)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/tests/tokenizer_parity"))
    parser.add_argument("--data", default=os.environ.get("LOCKSTEP_DATA") or os.path.join(ROOT, "../shared/data"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--characters", type=int, default=1_000_000, help="how many are fuzzed with each vocabulary [1000000]")
    options = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        program = Program(options.program, folder)
        bert_settings(program, folder, options.seed)
        bert_json(program, folder, options.seed)
        byte_level(program, folder, options.data, options.seed, options.characters)
        llama3(program, folder, options.data, options.seed, options.characters)
        sentence_piece(program, folder, options.data, options.seed, options.characters)
        if os.path.isdir(os.path.join(options.data, "vocab")):
            bert_data(program, folder, options.data, options.seed, options.characters)
        else:
            print(f"skipped: the texts of the data sets: {options.data} has no vocab/; set LOCKSTEP_DATA to the directory that has it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
