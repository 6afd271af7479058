// The commands eval and predict for checkpoints of text classifiers: Lockstep's, and Hugging Face's
// directories.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0::engine {

// In all functions below, `device` is the value of --device (device_option.h).

// Finds the text classifier that `path` means: itself, or the best or else the last checkpoint of a
// run's output directory. nullopt: there is none.
std::optional<std::filesystem::path> find_text_model(const std::filesystem::path& path);

// The last informative part of a path: "distributed" of runs/distributed/checkpoints/best.
std::string checkpoint_name(const std::filesystem::path& path);

// Prints accuracy, loss and the report over all ranks of the job, and the data: all rows of a file;
// of a directory the test set, or the dev set where no test text has a label. `given` empty: the
// data that a run of the recipe text was trained on. `given_split`: "train", "dev" or "test"
// instead, as training divides the data; "": none. Returns the exit code.
// Throws: what loading throws.
int eval_text(const std::filesystem::path& model, const std::string& given,
              const std::string& given_split, const std::string& device, const std::string& json);

struct TextQuestions {
  std::vector<std::filesystem::path> models;
  std::vector<std::string> texts;
  std::string file;  // texts, labelled or not; "": none
};
// Prints a block for each model and text: the text, its label where it is known, and the predicted
// label with its probability.
int predict_texts(const TextQuestions& questions, const std::string& device,
                  const std::string& json);

}  // namespace lockstep::inline v0::engine
