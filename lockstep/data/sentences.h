// A built-in data set: short Chinese sentences of six feelings, made by this code, in a format that
// text_classification() reads, for experiments without a download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The options of generate_sentences().
struct SentencesOptions {
  int64_t train = 4000;  // sentences of the training set
  int64_t dev = 500;     // sentences of the dev set
  int64_t seed = 1234;   // of all that is drawn
};

// Which of the two sets.
enum class SentencesSplit { kTrain, kDev };

// A text and its label.
struct Sentence {
  std::string text;
  int64_t label = 0;  // an index of sentence_labels()
};

// 其他 喜好 悲伤 厌恶 愤怒 高兴: other, liking, sadness, disgust, anger, joy.
LOCKSTEP_API std::vector<std::string> sentence_labels();

// `count` sentences of a split. Sentence i depends on seed, split and i alone: the same bytes on
// every machine. Some labels are wrong on purpose, so no model reaches 100 %. Thread-safe.
// Throws: InvalidArgument for a negative count.
LOCKSTEP_API std::vector<Sentence> render_sentences(int64_t count, int64_t seed,
                                                    SentencesSplit split);

// Makes `directory` (and its parents) where needed, and in it train.json, dev.json, labels.txt,
// vocab.txt (BERT's special tokens and every character that a sentence can have) and sentences.txt,
// which records how they were made. Returns false, having changed nothing, if the directory already
// has the data set of these options; one of other options is replaced. Several processes may call
// it at once: they take turns.
// Throws: InvalidArgument for counts outside 1..10,000,000, and if the directory has a data set
// that was not made here (it stays unchanged); SystemError if a file cannot be written; Timeout if
// another process holds the directory for more than a minute.
LOCKSTEP_API bool generate_sentences(const std::filesystem::path& directory,
                                     const SentencesOptions& options = {});

}  // namespace lockstep::inline v0::data
