// Texts, under every setting of the normalizer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/internal/byte_alphabet.h"

namespace {

using namespace lockstep::tokenizers;

std::vector<BertTokenizer> bert_tokenizers() {
  const std::vector<std::string> tokens = {
      "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "ab", "天", ",", "e", "##\u0301"};
  std::vector<BertTokenizer> made;
  for (int setting = 0; setting < 16; ++setting) {
    made.push_back(BertTokenizer::from_tokens(tokens, {.lowercase = (setting & 1) != 0,
                                                       .strip_accents = (setting & 2) != 0,
                                                       .chinese_characters = (setting & 4) != 0,
                                                       .clean_text = (setting & 8) != 0}));
  }
  return made;
}

// Every byte has a token, so nothing is lost.
ByteLevelBpe byte_tokenizer() {
  const ByteAlphabet alphabet;
  std::string vocabulary = "{";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += byte == 0 ? "\"" : ", \"";
    const char32_t character = alphabet.character(static_cast<uint8_t>(byte));
    if (character == U'"' || character == U'\\') vocabulary += '\\';
    lockstep::append_utf8(vocabulary, character);
    vocabulary += "\": " + std::to_string(byte);
  }
  return ByteLevelBpe::parse_files(vocabulary + ", \"ab\": 256, \"aba\": 257, \"ĠĠ\": 258}",
                                   "a b\nab a\nĠ Ġ\n");
}

std::string repaired(std::string_view text) {
  std::string good;
  for (; !text.empty(); text.remove_prefix(lockstep::utf8_character(text).length))
    lockstep::append_utf8(good, lockstep::utf8_character(text).code);
  return good;
}

void expect(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<BertTokenizer> kBert = bert_tokenizers();
  static const ByteLevelBpe kBytes = byte_tokenizer();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const BertTokenizer& bert = kBert[data[0] % kBert.size()];
  const std::string good = repaired(text);
  expect(!lockstep::malformed_utf8(good));
  expect(!lockstep::malformed_utf8(bert.normalize(text)));
  expect(bert.normalize(text) == bert.normalize(good));
  const auto encoding = bert.encode_pair(text, good, {.max_length = 16});
  expect(encoding.ids.size() <= 16 && encoding == bert.encode_pair(good, text, {.max_length = 16}));
  bert.decode(encoding.ids);
  expect(kBytes.decode(kBytes.encode(text)) == good);
  return 0;
}
