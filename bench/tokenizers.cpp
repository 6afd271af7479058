// One pass of a tokenizer over a file of texts for each line on stdin; prints its seconds. The
// other half of bench/tokenizer_speed.py, which sets it beside Hugging Face's `tokenizers`.
//
//   tokenizers bert|bpe PATH TEXTS [threads]      TEXTS: one text a line
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/tokenizers/byte_level_bpe.h"

namespace {

using namespace lockstep::tokenizers;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Pass>
void serve(const Pass& pass) {
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = Clock::now();
    const size_t tokens = pass();
    std::printf("%.6f %zu\n", seconds_since(start), tokens);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    std::vector<std::string> texts;
    std::ifstream file(argv[3], std::ios::binary);
    for (std::string line; std::getline(file, line);) texts.push_back(line);
    const int threads = argc > 4 ? std::stoi(argv[4]) : 1;
    if (std::string(argv[1]) == "bert") {
      const auto tokenizer = BertTokenizer::load(argv[2]);
      serve([&] {
        size_t tokens = 0;
        for (const auto& encoding : tokenizer.encode_batch(texts, {}, {.threads = threads}))
          tokens += encoding.ids.size();
        return tokens;
      });
    } else {
      const auto tokenizer = ByteLevelBpe::load(argv[2]);
      serve([&] {
        size_t tokens = 0;
        for (const auto& ids : tokenizer.encode_batch(texts, threads)) tokens += ids.size();
        return tokens;
      });
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
