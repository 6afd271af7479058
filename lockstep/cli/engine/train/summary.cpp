#include "lockstep/cli/engine/train/summary.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/text.h"
#include "lockstep/report/table.h"
#include "lockstep/train/recipes.h"

namespace lockstep::engine {
namespace {

// Indented, and padded so that the second column stands straight.
std::string entry(const std::string& left, const std::string& right) {
  constexpr size_t kWidth = 18;
  return "  " + left + std::string(left.size() < kWidth ? kWidth - left.size() : 1, ' ') + right +
         "\n";
}

// Lines that do what they say when they are pasted into a shell, whatever the run was given.
std::string try_next(const TrainSummary& summary) {
  const TrainConfig& config = summary.config;
  const Recipe& recipe = recipe_of(config.recipe);
  const std::string checkpoint = " --checkpoint " + shell_word(config.output);
  constexpr int64_t kPicture = 7;
  const int64_t picture = std::clamp<int64_t>(summary.result.evaluation.samples - 1, 0, kPicture);
  std::vector<std::string> lines{"eval" + checkpoint};
  if (recipe.kind == RecipeKind::kTexts)
    lines.push_back("predict" + checkpoint + " --text " + shell_quoted("今天真高兴"));
  else
    lines.push_back("predict" + checkpoint + " --file " + shell_word(summary.example) +
                    " --index " + std::to_string(picture));
  if (recipe.name == "mnist") {
    lines.push_back("compare --scaling 1,2 --epochs 1 --data " +
                    shell_word(summary.built_in ? recipe.built_in : config.data));
  }
  std::string text = "\nTry next:\n";
  for (const std::string& line : lines)
    text += "  " + shell_word(summary.command) + " " + line + "\n";
  if (summary.built_in)
    text += std::string("For ") + (recipe.kind == RecipeKind::kTexts ? "texts" : "pictures") +
            " of your own give --data DIR, with " + recipe.files + " in DIR.\n";
  return text;
}

}  // namespace

std::string train_summary(const TrainSummary& summary) {
  const auto& [result, config, backend, built_in, example, command] = summary;
  const RunFolder folder{config.output};
  const std::string ranks = config.nproc == 1 ? "1 rank" : std::to_string(config.nproc) + " ranks";
  std::string text = "\nTrained on " + ranks + " (" + backend + ", " + config.strategy + "): ";
  text.append(std::to_string(result.state.step))
      .append(" steps in ")
      .append(duration_text(result.seconds));
  text.append(", ").append(fixed(result.samples_per_s, 0)).append(" samples/s\n");
  const bool texts = recipe_of(config.recipe).kind == RecipeKind::kTexts;
  text.append(texts ? "Dev accuracy " : "Test accuracy ")
      .append(percent(result.state.accuracy, 2))
      .append(" on ");
  text.append(std::to_string(result.evaluation.samples)).append(" samples; the best was ");
  text.append(percent(result.state.best_score, 2))
      .append(" at step ")
      .append(std::to_string(result.state.best_step));
  text.append("\n\n");
  text += entry("best checkpoint", folder.best().string());
  text += entry("last checkpoint", folder.last().string());
  text += entry("metrics", folder.metrics().string());
  text += entry("report", folder.report().string());
  text += try_next(summary);
  return text;
}

}  // namespace lockstep::engine
