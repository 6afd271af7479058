// Vocabularies: vocab.txt (alone, and below the tokens that it must have), vocab.json with
// merges.txt (a NUL between them).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/internal/bert_parts.h"

namespace {

using namespace lockstep::tokenizers;

void bert(const std::string& vocabulary) {
  try {
    // The tables of characters, which are no part of this, are quick to make under these settings.
    const auto tokenizer = BertTokenizer::from_tokens(
        vocabulary_lines(vocabulary, "fuzz"), {.lowercase = false, .chinese_characters = false});
    const auto encoding = tokenizer.encode("The 天气 is[MASK] naïve, \xff");
    tokenizer.decode(encoding.ids, false);
    for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
      // Of a token that is there twice the later id counts.
      const std::string& token = tokenizer.token_of(id);
      const auto found = tokenizer.id_of(token);
      if (!found || *found < id || tokenizer.token_of(*found) != token) std::abort();
    }
  } catch (const lockstep::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) {
    bert(std::string(text));
    bert("[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + std::string(text));
    return 0;
  }
  try {
    const auto bpe = ByteLevelBpe::parse_files(text.substr(0, nul), text.substr(nul + 1));
    bpe.decode(bpe.encode("The 天气 is <|endoftext|> naïve, \xff"), false);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
