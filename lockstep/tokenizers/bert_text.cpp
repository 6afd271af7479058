// BertTokenizer: from ids to text, and what a person sees of it.
#include <array>
#include <utility>

#include "lockstep/tokenizers/internal/bert_state.h"

namespace lockstep::inline v0::tokenizers {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// The replacements of the `tokenizers` library's WordPiece decoder; it applies them to each token
// with the space before it, so the longer ones never match.
void clean_up(std::string& token) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kReplacements = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kReplacements) replace_all(token, from, to);
}

}  // namespace

std::string BertTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text, piece;
  bool first = true;
  for (const int32_t id : ids) {
    const std::string& token = token_of(id);
    if (skip_special_tokens && state_->special[static_cast<size_t>(id)]) continue;
    if (first) {
      piece = token;
    } else if (token.starts_with(state_->continuation)) {
      piece = token.substr(state_->continuation.size());
    } else {
      piece = " " + token;
    }
    first = false;
    if (state_->cleanup) clean_up(piece);
    text += piece;
  }
  return text;
}

std::string BertTokenizer::normalize(std::string_view text) const {
  return state_->normalize(text);
}

std::vector<std::string> BertTokenizer::tokenize(std::string_view text) const {
  std::vector<int32_t> ids;
  append_ids(text, ids);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(token_of(id));
  return pieces;
}

}  // namespace lockstep::inline v0::tokenizers
