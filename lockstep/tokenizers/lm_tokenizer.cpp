#include "lockstep/tokenizers/lm_tokenizer.h"

#include <type_traits>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {
namespace fs = std::filesystem;

constexpr const char* kCharacters = "characters.json";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kVocabulary = "vocab.json";
constexpr const char* kMerges = "merges.txt";

}  // namespace

LmTokenizer::LmTokenizer(Characters characters)
    : kind_(std::move(characters)), files_(std::get<Characters>(kind_).files()) {}

LmTokenizer::LmTokenizer(Kind kind, std::map<std::string, std::string> files)
    : kind_(std::move(kind)), files_(std::move(files)) {}

LmTokenizer LmTokenizer::load(const fs::path& path) {
  const auto has = [&](const char* name) { return fs::exists(path / name); };
  if (!fs::is_directory(path)) {
    if (path.filename() == kCharacters) return LmTokenizer(Characters::load(path));
    const std::string json = read_vocabulary_file(path), name = path.string();
    if (SentencePieceBpe::is_one(json, name))
      return {SentencePieceBpe::parse_tokenizer_json(json, name), {{kTokenizer, json}}};
    return {ByteLevelBpe::parse_tokenizer_json(json, name), {{kTokenizer, json}}};
  }
  for (const char* name : {kCharacters, kTokenizer})
    if (has(name)) return load(path / name);
  if (!has(kVocabulary) || !has(kMerges))
    refuse(path.string(),
           "has neither characters.json nor tokenizer.json nor vocab.json with merges.txt; give a "
           "tokenizer's directory");
  std::map<std::string, std::string> files;
  for (const char* name : {kVocabulary, kMerges}) files[name] = read_vocabulary_file(path / name);
  auto bpe = ByteLevelBpe::parse_files(files[kVocabulary], files[kMerges], {},
                                       (path / kVocabulary).string(), (path / kMerges).string());
  return {std::move(bpe), std::move(files)};
}

int64_t LmTokenizer::vocabulary_size() const {
  return std::visit([](const auto& kind) { return kind.vocabulary_size(); }, kind_);
}

std::vector<int32_t> LmTokenizer::encode(std::string_view text) const {
  return std::visit([&](const auto& kind) { return kind.encode(text); }, kind_);
}

std::string LmTokenizer::decode(std::span<const int32_t> ids) const {
  return std::visit([&](const auto& kind) { return kind.decode(ids); }, kind_);
}

std::vector<int32_t> LmTokenizer::begin_of_text() const {
  if (const auto* bytes = std::get_if<ByteLevelBpe>(&kind_)) return bytes->begin_of_text();
  if (const auto* pieces = std::get_if<SentencePieceBpe>(&kind_)) return pieces->begin_of_text();
  return {};
}

std::optional<int32_t> LmTokenizer::end_of_text_id() const {
  if (const auto* bytes = std::get_if<ByteLevelBpe>(&kind_)) return bytes->end_of_text_id();
  if (const auto* pieces = std::get_if<SentencePieceBpe>(&kind_)) return pieces->end_of_text_id();
  return std::nullopt;
}

}  // namespace lockstep::inline v0::tokenizers
