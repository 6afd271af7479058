// The grammar of the sentences of generate_sentences().
#pragma once

#include <span>
#include <string_view>

namespace lockstep::inline v0::data {

// `name` may be written as any one of `choices`, separated by '|'. A name in braces in a choice
// stands for a choice of that rule. No rule refers to itself, directly or indirectly.
struct SentenceRule {
  std::string_view name;
  std::string_view choices;
};

// The rules of whole sentences are named "0" to "5", by label; "*" ends a sentence of any label.
std::span<const SentenceRule> sentence_rules();

}  // namespace lockstep::inline v0::data
