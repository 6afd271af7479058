#!/usr/bin/env python3
"""Tokenising the data, set beside Hugging Face's `tokenizers` (Rust), both on one thread, in alternating rounds.

emotion-zh with the Chinese BERT vocabulary, tinyshakespeare with the English one, and both with a byte-level BPE trained here. Prints
the median of each side in million characters a second, and the median of the rounds' ratios (above 1: Lockstep is faster). Needs the
packages tokenizers and transformers.

    bench/tokenizer_speed.py --data ../shared/data [--program build/release/bin/bench/tokenizers] [--rounds 15]
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import BertTokenizer  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_texts(data):
    with open(os.path.join(data, "emotion-zh/train.json"), encoding="utf-8") as f:
        chinese = [text.replace(" ", "").strip().replace("\n", " ") for text, _ in json.load(f)]
    with open(os.path.join(data, "tinyshakespeare/input.txt"), encoding="utf-8") as f:
        english = [line for line in f.read().split("\n") if line]
    return chinese, english


def bert(data, vocabulary):
    path = os.path.join(data, "vocab", vocabulary)
    return "bert", path, BertTokenizer(vocab=path)._tokenizer


def byte_level(folder, texts):
    oracle = Tokenizer(models.BPE())
    oracle.pre_tokenizer, oracle.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    oracle.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8000, show_progress=False, special_tokens=["<|endoftext|>"],
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    path = os.path.join(folder, "tokenizer.json")
    oracle.save(path)
    return "bpe", path, oracle


def measure(name, program, folder, kind, path, oracle, texts, rounds):
    lines = os.path.join(folder, "texts")
    with open(lines, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{text}\n" for text in texts)
    ours, theirs = [], []
    with subprocess.Popen([program, kind, path, lines, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(rounds + 1):  # the first one warms both up
            process.stdin.write("\n")
            process.stdin.flush()
            seconds, tokens = process.stdout.readline().split()
            ours.append(float(seconds))
            start = time.perf_counter()
            encodings = oracle.encode_batch_fast(texts)
            theirs.append(time.perf_counter() - start)
            assert sum(len(e) for e in encodings) == int(tokens), "not the same tokens"
        process.stdin.close()
    characters = sum(map(len, texts)) / 1e6
    ratio = statistics.median(b / a for a, b in zip(ours[1:], theirs[1:]))
    print(f"{name:24} {characters / statistics.median(ours[1:]):8.1f} {characters / statistics.median(theirs[1:]):8.1f} {ratio:8.2f}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the directory of emotion-zh/, tinyshakespeare/ and vocab/")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/bench/tokenizers"))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    chinese, english = load_texts(options.data)
    print(f"{'':24} {'Lockstep':>8} {'Rust':>8} {'ratio':>8}   million characters a second; one thread")
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer, texts in [
                ("emotion-zh, BERT", bert(options.data, "bert-base-chinese-vocab.txt"), chinese),
                ("tinyshakespeare, BERT", bert(options.data, "bert-base-uncased-vocab.txt"), english),
                ("emotion-zh, BPE", byte_level(folder, chinese + english), chinese),
                ("tinyshakespeare, BPE", byte_level(folder, chinese + english), english)]:
            measure(name, options.program, folder, *tokenizer, texts, options.rounds)


if __name__ == "__main__":
    main()
