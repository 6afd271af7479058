#include "lockstep/cli/engine/train_summary.h"

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
  text.append("Test accuracy ").append(percent(result.state.accuracy, 2)).append(" on ");
  text.append(std::to_string(result.evaluation.samples)).append(" samples; the best was ");
  text.append(percent(result.state.best_score, 2))
      .append(" at step ")
      .append(std::to_string(result.state.best_step));
  text.append("\n\n");
  text += entry("best checkpoint", folder.best().string());
  text += entry("last checkpoint", folder.last().string());
  text += entry("metrics", folder.metrics().string());
  text += entry("report", folder.report().string());
  text.append("\nTry next:\n");
  text.append("  ")
      .append(command)
      .append(" eval --checkpoint ")
      .append(config.output)
      .append("\n");
  text.append("  ").append(command).append(" predict --checkpoint ").append(config.output);
  text.append(" --file ").append(example).append(" --index 7\n");
  const Recipe& recipe = recipe_of(config.recipe);
  if (recipe.name == "mnist") {
    text.append("  ").append(command).append(" compare --scaling 1,2 --epochs 1 --data ");
    text.append(built_in ? recipe.built_in : config.data).append("\n");
  }
  if (built_in) {
    text.append("  ").append(command).append(" train ").append(recipe.name);
    text.append(" --nproc 2 --data DIR    with ").append(recipe.files).append(" in DIR\n");
  }
  return text;
}

}  // namespace lockstep::engine
