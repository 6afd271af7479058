// What lockstep's tokenizers make of texts, for tokenizer_parity.py to compare.
//
//   tokenizer_parity bert|bpe|pieces PATH ids|encode|normalize|decode|begin IN OUT [max_length [truncation]]
//
// IN and OUT are records: a 32-bit length and so many bytes. `encode` takes two records a text, the
// second one its pair (length -1: none). Ids are 32-bit; `encode` writes two records a text, ids
// and types.
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/sentence_piece_bpe.h"

namespace {

using lockstep::tokenizers::BertTokenizer;
using lockstep::tokenizers::ByteLevelBpe;
using lockstep::tokenizers::EncodeOptions;
using lockstep::tokenizers::Encoding;
using lockstep::tokenizers::SentencePieceBpe;
using lockstep::tokenizers::Truncation;
using Ids = std::vector<int32_t>;

std::vector<std::optional<std::string>> read_records(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::optional<std::string>> records;
  for (size_t at = 0; at + 4 <= bytes.size();) {
    int32_t length;
    std::memcpy(&length, &bytes[at], 4);
    at += 4;
    if (length < 0) {
      records.emplace_back();
      continue;
    }
    records.emplace_back(bytes.substr(at, static_cast<size_t>(length)));
    at += static_cast<size_t>(length);
  }
  return records;
}

class Writer {
 public:
  explicit Writer(const char* path) : file_(path, std::ios::binary) {}
  void write(std::string_view bytes) {
    const auto length = static_cast<int32_t>(bytes.size());
    file_.write(reinterpret_cast<const char*>(&length), 4);
    file_.write(bytes.data(), length);
  }
  void write(const Ids& ids) { write({reinterpret_cast<const char*>(ids.data()), 4 * ids.size()}); }

 private:
  std::ofstream file_;
};

Ids ids_of(const std::string& bytes) {
  Ids ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), 4 * ids.size());
  return ids;
}

EncodeOptions options_of(int argc, char** argv) {
  EncodeOptions options{.truncation = Truncation::kNone};
  if (argc > 6) options = {.max_length = std::stoll(argv[6])};
  const std::map<std::string, Truncation> names = {{"longest_first", Truncation::kLongestFirst},
                                                   {"only_first", Truncation::kOnlyFirst},
                                                   {"only_second", Truncation::kOnlySecond}};
  if (argc > 7) options.truncation = names.at(argv[7]);
  return options;
}

void bert(const BertTokenizer& tokenizer, const std::string& what, const char* in, const char* out,
          const EncodeOptions& options) {
  const auto records = read_records(in);
  Writer writer(out);
  for (size_t i = 0; i < records.size(); ++i) {
    const std::string& text = *records[i];
    if (what == "ids") {
      Ids ids;
      tokenizer.append_ids(text, ids);
      writer.write(ids);
    } else if (what == "normalize") {
      writer.write(tokenizer.normalize(text));
    } else if (what == "decode") {
      writer.write(tokenizer.decode(ids_of(text)));
    } else if (what == "encode") {
      const auto& pair = records[++i];
      try {
        const Encoding encoding =
            pair ? tokenizer.encode_pair(text, *pair, options) : tokenizer.encode(text, options);
        writer.write(encoding.ids);
        writer.write(encoding.type_ids);
      } catch (const lockstep::InvalidArgument&) {  // cannot be cut as asked
        writer.write(Ids{-1});
        writer.write(Ids{});
      }
    }
  }
}

template <typename Tokenizer>
void bpe(const Tokenizer& tokenizer, const std::string& what, const char* in, const char* out) {
  std::vector<std::string> texts;
  for (auto& record : read_records(in)) texts.push_back(std::move(*record));
  Writer writer(out);
  if (what == "ids") {
    if constexpr (requires { tokenizer.encode_batch(texts); })
      for (const Ids& ids : tokenizer.encode_batch(texts)) writer.write(ids);
    else
      for (const std::string& text : texts) writer.write(tokenizer.encode(text));
  } else if (what == "begin") {
    writer.write(tokenizer.begin_of_text());
  } else {
    for (const std::string& text : texts) writer.write(tokenizer.decode(ids_of(text)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  try {
    const std::string kind = argv[1];
    if (kind == "bert")
      bert(BertTokenizer::load(argv[2]), argv[3], argv[4], argv[5], options_of(argc, argv));
    else if (kind == "pieces")
      bpe(SentencePieceBpe::from_tokenizer_json(argv[2]), argv[3], argv[4], argv[5]);
    else
      bpe(ByteLevelBpe::load(argv[2]), argv[3], argv[4], argv[5]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
