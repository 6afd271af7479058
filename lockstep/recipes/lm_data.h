// The data and the model of the recipe lm: texts, and a decoder that continues them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/data/language_texts.h"
#include "lockstep/data/token_windows.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/tokenizers/lm_tokenizer.h"
#include "lockstep/train/run_state.h"

namespace lockstep::inline v0 {

// The word for a tokenizer whose tokens are the data's characters.
inline constexpr const char* kCharacterTokens = "characters";

struct LmInput {
  std::string data = {};  // a directory or file (data/language_texts.h)
  std::string tokenizer =
      {};  // a directory or file, or "characters"; "": the model's, or characters
  std::string model = "tiny";  // lm_preset_names(), or a directory of transformers' Llama
  int64_t context = 64;        // tokens of a window
  double dropout = 0;          // LmConfig::hidden_dropout
};

// The texts as windows of tokens, and what other texts need to be read in the same way.
struct LmData {
  data::TokenWindows train, dev;  // the last window of dev may be shorter
  tokenizers::LmTokenizer tokenizer;
  std::vector<int64_t> end_ids;  // tokens that end a text; may be empty
  std::string opening;           // the first characters of a dev text's line: a prompt to try
  // The text of the model's generation_config.json, which checkpoints keep; "" if it has none, or
  // if the tokenizer is another one.
  std::string generation_config = {};
  std::vector<std::string> unread = {};  // LanguageTexts'
};

// A text of rows ends with the tokenizer's end token, or else with its newline.
// Throws: DataError, also for fewer tokens than a window; CheckpointError; InvalidArgument.
LmData load_lm_data(const LmInput& input);

// Returns what `read` returns. A DataError that it throws then begins with `place`.
template <typename Read>
auto data_errors_of(const std::string& place, const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DataError(place + ": " + error.what());
  }
}

// The windows of texts for an evaluation.
// Throws: DataError.
data::TokenWindows evaluation_windows(const tokenizers::LmTokenizer& tokenizer,
                                      const std::vector<std::string>& texts, bool rows,
                                      int64_t context);

// Makes the model without values, from a preset or a directory's config.json.
// Throws: CheckpointError; InvalidArgument for a context or a vocabulary that exceeds the
// directory's model.
TransformerLm make_lm(const LmInput& input, const LmData& data);
// Returns the source of its values (Strategy::set_up()): the directory's files, read a part at a
// time, or draws of the default generator.
// Throws: CheckpointError if the files do not fit the model.
std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> lm_values(
    const LmInput& input, const TransformerLm& model);

// The files that a checkpoint needs beside the parameters, for transformers to open it.
CheckpointFiles lm_checkpoint_files(const TransformerLm& model, const LmData& data);

}  // namespace lockstep::inline v0
