// How good an evaluation is, for a recipe: by accuracy, or of language models by perplexity.
#pragma once

#include <string>

#include "lockstep/recipes/recipes.h"
#include "lockstep/train/evaluation.h"

namespace lockstep {

// The greater, the better: what checkpoints/best goes by, and TrainerState::best_score.
double score_of(const Recipe& recipe, const Evaluation& evaluation);
// A score for people: "97.21 %", "4.613".
std::string score_text(const Recipe& recipe, double score);
// What a score is one of: "test accuracy", "dev perplexity".
std::string score_name(const Recipe& recipe);

}  // namespace lockstep
