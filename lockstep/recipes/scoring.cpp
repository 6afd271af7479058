#include "lockstep/recipes/scoring.h"

#include <cmath>

#include "lockstep/report/table.h"

namespace lockstep::inline v0 {
namespace {
bool is_language(const Recipe& recipe) {
  return recipe.kind == RecipeKind::kLanguage;
}
}  // namespace

double score_of(const Recipe& recipe, const Evaluation& evaluation) {
  return is_language(recipe) ? -evaluation.loss : evaluation.accuracy;
}

std::string score_text(const Recipe& recipe, double score) {
  return is_language(recipe) ? fixed(std::exp(-score), 3) : percent(score, 2);
}

std::string score_name(const Recipe& recipe) {
  return recipe.held_out + (is_language(recipe) ? " perplexity" : " accuracy");
}

}  // namespace lockstep::inline v0
