#include "lockstep/tokenizers/internal/sentence_piece_state.h"

#include <charconv>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

// 10 for "<0x0A>".
std::optional<uint8_t> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto read = std::from_chars(token.data() + 3, end, byte, 16);
  return read.ec == std::errc() && read.ptr == end ? std::optional(byte) : std::nullopt;
}

std::string token_of_byte(uint8_t byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

void require_text(const JsonObject& part, std::string_view key, std::string_view wanted) {
  if (part.text(key) != wanted) part.refuse(key, std::string(shown(wanted)));
}

}  // namespace

SentencePieceBpe::State::State(const JsonObject& root, std::string_view name) {
  read_spaces(root);
  read_decoder(root);
  read_model(root.object("model"), name);
  read_added_tokens(root);
  for (const std::string& token : tokens_before_texts(root)) {
    const auto id = id_of(token);
    if (!id)
      refuse(name, "post_processor has the token " + shown(token) + ", which the vocabulary lacks");
    begin_of_text.push_back(*id);
  }
}

void SentencePieceBpe::State::read_spaces(const JsonObject& root) {
  normalizes_ = root.has("normalizer");
  if (normalizes_ == root.has("pre_tokenizer"))
    root.say("normalizer", normalizes_ ? "and pre_tokenizer are both set, which is not supported"
                                       : "and pre_tokenizer say nothing of spaces");
  if (normalizes_) {
    const JsonObject normalizer = root.object("normalizer");
    require_type(normalizer, "Sequence");
    const auto both = objects_of(normalizer, "normalizers");
    if (both.size() != 2) normalizer.say("normalizers", "are not Prepend and Replace");
    require_type(both[0], "Prepend");
    require_text(both[0], "prepend", kSpaceMark);
    require_type(both[1], "Replace");
    require_text(both[1].object("pattern"), "String", " ");
    require_text(both[1], "content", kSpaceMark);
    prepend_ = Prepend::kToPartsTwice;
    return;
  }
  const JsonObject meta = root.object("pre_tokenizer");
  require_type(meta, "Metaspace");
  require_text(meta, "replacement", kSpaceMark);
  if (meta.flag("split", true)) meta.say("split", "is true, which is not supported");
  const std::string scheme = meta.text("prepend_scheme", "always");
  if (scheme == "always")
    prepend_ = Prepend::kToParts;
  else if (scheme == "first")
    prepend_ = Prepend::kToTheText;
  else if (scheme != "never")
    meta.refuse("prepend_scheme", "always, first or never");
}

void SentencePieceBpe::State::read_decoder(const JsonObject& root) {
  const JsonObject decoder = root.object("decoder");
  require_type(decoder, "Sequence");
  const auto steps = objects_of(decoder, "decoders");
  if (steps.size() != 3 && steps.size() != 4)
    decoder.say("decoders", "are not Replace, ByteFallback, Fuse and perhaps Strip");
  require_type(steps[0], "Replace");
  require_text(steps[0].object("pattern"), "String", kSpaceMark);
  require_text(steps[0], "content", " ");
  require_type(steps[1], "ByteFallback");
  require_type(steps[2], "Fuse");
  if (steps.size() == 3) return;
  require_type(steps[3], "Strip");
  require_text(steps[3], "content", " ");
  stripped = static_cast<int>(steps[3].whole("start", 0, INT32_MAX));
  if (steps[3].whole("stop", 0) != 0) steps[3].say("stop", "is set, which is not supported");
}

void SentencePieceBpe::State::read_model(const JsonObject& model, std::string_view name) {
  if (model.has("type")) require_type(model, "BPE");
  for (const char* key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"})
    require_off(model, key);
  tokens = vocabulary_of(model.find("vocab"), name, "model.vocab");
  for (const std::string& token : tokens) ids_.emplace(token, static_cast<int32_t>(ids_.size()));
  byte_fallback_ = model.flag("byte_fallback", false);
  fuse_unknown_ = model.flag("fuse_unk", false);
  if (model.has("unk_token")) {
    const std::string unknown = model.text("unk_token");
    unknown_ = id_of(unknown);
    if (!unknown_) model.say("unk_token", "is " + shown(unknown) + ", which the vocabulary lacks");
  }
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[static_cast<size_t>(byte)] =
        id_of(token_of_byte(static_cast<uint8_t>(byte))).value_or(-1);
  int64_t number = 0;
  for (const auto& [left, right] : merges_of(model)) {
    const auto id = [&](const std::string& token) {
      if (const auto found = id_of(token)) return *found;
      refuse(name, "merge " + std::to_string(number) + " needs the token " + shown(token) +
                       ", which the vocabulary lacks");
    };
    merges_.add({id(left), id(right), id(left + right)});
    ++number;
  }
}

void SentencePieceBpe::State::read_added_tokens(const JsonObject& root) {
  std::vector<AddedToken> raw, normalized, added = added_tokens_of(root, tokens);
  special.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    ids_.emplace(tokens[id], static_cast<int32_t>(id));
    bytes.push_back(byte_of(tokens[id]));
  }
  if (const auto end = end_token_of(added)) end_of_text_id = id_of(*end);
  for (AddedToken& token : added) {
    if (token.special) special[static_cast<size_t>(token.id)] = true;
    if (!token.normalized) {
      raw.push_back(std::move(token));
      continue;
    }
    // Its form in a normalized text, and when it is decoded.
    if (normalizes_)
      tokens[static_cast<size_t>(token.id)] = token.content = spaced(token.content, true);
    normalized.push_back(std::move(token));
  }
  raw_ = AddedTokenFinder(std::move(raw));
  normalized_ = AddedTokenFinder(std::move(normalized));
}

std::optional<int32_t> SentencePieceBpe::State::id_of(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string SentencePieceBpe::State::spaced(std::string_view part, bool begins) const {
  std::string result;
  if (part.empty()) return result;
  for (const char byte : part) {
    if (byte == ' ')
      result += kSpaceMark;
    else
      result += byte;
  }
  const bool has_one = result.starts_with(kSpaceMark);
  if (prepend_ == Prepend::kToPartsTwice || (prepend_ == Prepend::kToParts && !has_one) ||
      (prepend_ == Prepend::kToTheText && begins && !has_one))
    result.insert(0, kSpaceMark);
  return result;
}

// Appends the characters' tokens, otherwise their bytes' tokens, otherwise the unknown token, and
// merges them.
void SentencePieceBpe::State::append_pieces(std::string_view part,
                                            std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  bool unknown = false;  // one that is not there yet
  const auto flush = [&] {
    if (std::exchange(unknown, false)) ids.push_back(*unknown_);
  };
  while (!part.empty()) {
    const std::string_view character = part.substr(0, utf8_character(part).length);
    part.remove_prefix(character.size());
    if (const auto id = id_of(character)) {
      flush();
      ids.push_back(*id);
      continue;
    }
    bool all = byte_fallback_;
    for (const char byte : character) all = all && byte_ids_[static_cast<uint8_t>(byte)] >= 0;
    if (all) {
      for (const char byte : character) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    } else if (unknown_) {
      if (!fuse_unknown_) flush();
      unknown = true;
    }
  }
  flush();
  merges_.merge(ids, first);
}

void SentencePieceBpe::State::append_ids(std::string_view text, std::vector<int32_t>& ids) const {
  if (malformed_utf8(text)) {
    std::string repaired;
    while (!text.empty()) {
      const Utf8Character character = utf8_character(text);
      append_utf8(repaired, character.code);
      text.remove_prefix(character.length);
    }
    return append_ids(repaired, ids);
  }
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto pieces = [&](std::string_view part) { append_pieces(part, ids); };
  raw_.split(
      text,
      [&](std::string_view part) {
        if (normalizes_) {
          normalized_.split(spaced(part, true), pieces, token);
          return;
        }
        normalized_.split(
            part,
            [&](std::string_view piece) { pieces(spaced(piece, piece.data() == text.data())); },
            token);
      },
      token);
}

}  // namespace lockstep::inline v0::tokenizers
