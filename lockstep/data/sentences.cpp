#include "lockstep/data/sentences.h"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/internal/generated_files.h"
#include "lockstep/data/internal/sentence_grammar.h"
#include "lockstep/data/internal/split_mix.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 6> kFeelings = {"其他", "喜好", "悲伤", "厌恶", "愤怒", "高兴"};
constexpr std::array<size_t, 6> kShares = {30, 17, 14, 15, 10, 14};  // in per cent
constexpr size_t kWrongLabels = 8;                                   // in per cent, at random

class SentenceMaker {
 public:
  SentenceMaker() {
    for (const SentenceRule& rule : sentence_rules()) {
      std::string_view rest = rule.choices;
      auto& choices = rules_[rule.name];
      for (size_t bar; (bar = rest.find('|')) != std::string_view::npos;
           rest.remove_prefix(bar + 1))
        choices.push_back(rest.substr(0, bar));
      choices.push_back(rest);
    }
  }

  Sentence make(SplitMix& random) const {
    size_t share = random.below(100), label = 0;
    while (share >= kShares[label]) share -= kShares[label++];
    Sentence sentence;
    write(std::to_string(label), random, sentence.text);
    write("*", random, sentence.text);
    if (random.below(100) < kWrongLabels) label = random.below(kFeelings.size());
    sentence.label = static_cast<int64_t>(label);
    return sentence;
  }

  // All characters that a sentence can have, by code.
  std::set<std::string> characters() const {
    std::set<std::string> found;
    for (const auto& [name, choices] : rules_) {
      for (std::string_view choice : choices) {
        while (!choice.empty()) {
          const size_t length =
              choice[0] == '{' ? choice.find('}') + 1 : utf8_character(choice).length;
          if (choice[0] != '{') found.emplace(choice.substr(0, length));
          choice.remove_prefix(length);
        }
      }
    }
    return found;
  }

 private:
  void write(std::string_view name, SplitMix& random, std::string& text) const {
    const auto& choices = rules_.at(name);
    std::string_view rest = choices[random.below(choices.size())];
    for (size_t brace; (brace = rest.find('{')) != std::string_view::npos;) {
      text += rest.substr(0, brace);
      const size_t end = rest.find('}', brace);
      write(rest.substr(brace + 1, end - brace - 1), random, text);
      rest.remove_prefix(end + 1);
    }
    text += rest;
  }

  std::map<std::string_view, std::vector<std::string_view>, std::less<>> rules_;
};

std::string json_of(const std::vector<Sentence>& sentences) {
  std::string text = "[";
  for (const Sentence& sentence : sentences) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += nlohmann::json({sentence.text, sentence.label}).dump();
  }
  return text + "\n]\n";
}

std::string vocabulary() {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string& character : SentenceMaker().characters()) lines += character + "\n";
  return lines;
}

std::string label_lines() {
  std::string lines;
  for (const char* label : kFeelings) lines += std::string(label) + "\n";
  return lines;
}

}  // namespace

std::vector<std::string> sentence_labels() {
  return {kFeelings.begin(), kFeelings.end()};
}

std::vector<Sentence> render_sentences(int64_t count, int64_t seed, SentencesSplit split) {
  if (count < 0) {
    throw InvalidArgument("render_sentences: " + std::to_string(count) + " samples; use 0 or more");
  }
  const SentenceMaker maker;
  std::vector<Sentence> sentences;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    SplitMix random(static_cast<uint64_t>(seed), split == SentencesSplit::kTrain ? 1 : 2, i);
    sentences.push_back(maker.make(random));
  }
  return sentences;
}

bool generate_sentences(const fs::path& directory, const SentencesOptions& options) {
  for (const int64_t count : {options.train, options.dev})
    check_generated_count("generate_sentences", count);
  const auto write = [&](const char* name, int64_t count, SentencesSplit split) {
    write_file_aside(directory / name, json_of(render_sentences(count, options.seed, split)));
  };
  return generate_files(
      directory,
      {.record = "sentences.txt",
       .heading = "Lockstep sentences, version 1\n",
       .options = "train " + std::to_string(options.train) + "\ndev " +
                  std::to_string(options.dev) + "\nseed " + std::to_string(options.seed) + "\n",
       .ours = "Lockstep sentences",
       .complete =
           [&] {
             for (const char* name : {"train.json", "dev.json", "labels.txt", "vocab.txt"}) {
               std::error_code none;
               if (!fs::exists(directory / name, none)) return false;
             }
             return true;
           },
       .write =
           [&] {
             write("train.json", options.train, SentencesSplit::kTrain);
             write("dev.json", options.dev, SentencesSplit::kDev);
             write_file_aside(directory / "labels.txt", label_lines());
             write_file_aside(directory / "vocab.txt", vocabulary());
           },
       .foreign =
           [](const std::string& name) {
             for (const char* stem : {"train.", "dev.", "test.", "labels.", "class.", "vocab."}) {
               if (name.starts_with(stem)) return true;
             }
             return name == "split_seed123.txt";
           }});
}

}  // namespace lockstep::inline v0::data
