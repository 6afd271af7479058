#include "lockstep/cli/engine/train/summary.h"

#include <cctype>
#include <vector>

#include "lockstep/core/named_file.h"
#include "lockstep/core/text.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/scoring.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace {

// Indents a line, and pads it so that the second column is aligned.
std::string entry(const std::string& left, const std::string& right) {
  constexpr size_t kWidth = 18;
  return "  " + left + std::string(left.size() < kWidth ? kWidth - left.size() : 1, ' ') + right +
         "\n";
}

// The lines work when they are pasted into a shell, whatever arguments the run had.
std::string try_next(const TrainSummary& summary) {
  const TrainConfig& config = summary.config;
  const Recipe& recipe = recipe_of(config.recipe);
  const std::string checkpoint = " --checkpoint " + shell_word(config.output);
  std::vector<std::string> lines{"eval" + checkpoint,
                                 "predict" + checkpoint + " " + summary.result.question};
  if (recipe.name == "mnist" && summary.compares) {
    lines.push_back("compare --scaling 1,2 --epochs 1 --data " +
                    shell_word(summary.built_in ? recipe.built_in : path_from_here(config.data)));
  }
  std::string text = "\nTry next:\n";
  for (const std::string& line : lines)
    text += "  " + shell_word(summary.command) + " " + line + "\n";
  if (summary.built_in)
    text +=
        "For " + recipe.own + " of your own give --data DIR, with " + recipe.files + " in DIR.\n";
  return text;
}

std::string scores(const Recipe& recipe, const TrainResult& result) {
  std::string name = score_name(recipe);
  const std::string best = score_text(recipe, result.state.best_score) + " at step " +
                           std::to_string(result.state.best_step);
  if (result.evaluation.samples == 0) return "The best " + name + " was " + best;
  name.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(name.front())));
  return name + " " + score_text(recipe, score_of(recipe, result.evaluation)) + " on " +
         std::to_string(result.evaluation.samples) + " " + recipe.counted + "; the best was " +
         best;
}

}  // namespace

std::string train_summary(const TrainSummary& summary) {
  const auto& [result, config, backend, built_in, command, compares, devices] = summary;
  const RunFolder folder{config.output};
  const std::string ranks = config.nproc == 1 ? "1 rank" : std::to_string(config.nproc) + " ranks";
  // For a divided model the mesh says how; the strategy says how the gradients are treated beside
  // it.
  const std::string way = config.mesh.empty()      ? config.strategy
                          : !divides_model(config) ? config.strategy + ", mesh " + config.mesh
                          : config.strategy == "ddp"
                              ? "mesh " + config.mesh
                              : "mesh " + config.mesh + ", " + config.strategy;
  std::string text = "\nTrained on " + ranks + " (" + backend + ", " + way +
                     (devices.empty() ? "" : ", on " + devices) + "): ";
  text.append(std::to_string(result.state.step))
      .append(" steps in ")
      .append(duration_text(result.seconds));
  const Recipe& recipe = recipe_of(config.recipe);
  text.append(", ").append(fixed(result.samples_per_s, 0)).append(" " + recipe.counted + "/s\n");
  text += scores(recipe, result);
  text.append("\n\n");
  text += entry("best checkpoint", folder.best().string());
  text += entry("last checkpoint", folder.last().string());
  text += entry("metrics", folder.metrics().string());
  text += entry("report", folder.report().string());
  text += entry("memory", folder.memory().string());
  text += try_next(summary);
  return text;
}

}  // namespace lockstep::inline v0::engine
