// Scores evaluations: by accuracy, or for language models by perplexity.
#pragma once

#include <string>

#include "lockstep/recipes/recipes.h"
#include "lockstep/train/evaluation.h"

namespace lockstep::inline v0 {

// A greater score is better. It chooses checkpoints/best, and is TrainerState::best_score.
double score_of(const Recipe& recipe, const Evaluation& evaluation);
// The text of a score: "97.21 %", "4.613".
std::string score_text(const Recipe& recipe, double score);
// The name of the score: "test accuracy", "dev perplexity".
std::string score_name(const Recipe& recipe);

}  // namespace lockstep::inline v0
