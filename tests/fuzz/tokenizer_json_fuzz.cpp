// tokenizer.json and tokenizer_config.json.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/internal/bert_parts.h"
#include "lockstep/tokenizers/sentence_piece_bpe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::tokenizers;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view kText = "The  天气 is[MASK] naïve, <a> \xff";
  try {
    const auto tokenizer = BertTokenizer::parse_tokenizer_json(json, "fuzz");
    tokenizer.decode(tokenizer.encode_pair(kText, kText).ids, false);
  } catch (const lockstep::Error&) {
  }
  try {
    const auto tokenizer = ByteLevelBpe::parse_tokenizer_json(json, "fuzz");
    tokenizer.decode(tokenizer.encode(kText), false);
  } catch (const lockstep::Error&) {
  }
  try {
    SentencePieceBpe::is_one(json, "fuzz");
    const auto tokenizer = SentencePieceBpe::parse_tokenizer_json(json, "fuzz");
    tokenizer.decode(tokenizer.encode(kText), false);
  } catch (const lockstep::Error&) {
  }
  try {
    BertTokenizerOptions options;
    apply_tokenizer_config(json, "fuzz", options);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
