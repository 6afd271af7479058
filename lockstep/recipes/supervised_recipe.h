// SupervisedRecipe: the common part of recipes that train by labelled batches.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/data/loader.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/train/supervised_task.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {

// M, D and Loss are as in SupervisedTask.
// Requires: whatever it refers to outlives the call.
template <typename M, data::Dataset D, typename Loss>
struct SupervisedRecipe {
  using Autocast = std::optional<amp::AutocastSettings>;

  const D& train;
  int64_t held_out = 0;  // samples to evaluate on
  // Makes the model by drawn_from_seed(), perhaps without values.
  std::function<M()> make;
  // Returns the source of its values (Strategy::set_up()), for a model without.
  std::function<Strategy::Initial(const M&)> initial = {};
  Loss loss = {};
  // `ranks`: StrategyPlacement::evaluation_ranks().
  std::function<Evaluation(M&, Communicator& ranks, const Autocast&)> evaluate;
  std::function<CheckpointFiles(const M&)> files = {};
  std::function<Metrics(M&, const Strategy&)> figures = {};  // SupervisedTask's
  std::vector<std::string> labels = {};                      // RecipeParts'
  std::string question;                                      // TrainResult's
};

// `start`: the time before the data were loaded.
// Collective: all ranks.
// Throws: as train_recipe().
template <typename M, data::Dataset D, typename Loss>
TrainResult train_supervised(Communicator& comm, const TrainConfig& config,
                             const TrainRunOptions& options,
                             std::chrono::steady_clock::time_point start,
                             const SupervisedRecipe<M, D, Loss>& recipe) {
  check_against_data(config, recipe.train.size(), recipe.held_out);
  const auto strategy = options.strategy ? options.strategy : strategy_of(config);
  const TrainSpec spec = spec_of(config);
  M made = recipe.make();
  ModelOnRanks run({.model = made.ptr(),
                    .strategy = strategy,
                    .comm = comm,
                    .step = spec.step,
                    .initial = recipe.initial ? recipe.initial(made) : nullptr});
  const auto autocast = autocast_of(spec.step.precision, comm.device());
  const auto attempt = [&] {
    Communicator& ranks = run.comm();
    const TrainSpec::Data now = run.dealt_anew(spec.data);
    const DealtSamples dealt = deal(now, recipe.train.size(), *strategy, ranks);
    data::Loader loader(recipe.train, *dealt.sampler, loader_options(now, dealt, device_of(*made)));
    StrategyModel<M> model(made, strategy);
    Communicator eval_ranks = strategy->placement().evaluation_ranks(ranks);
    Loss loss = recipe.loss;
    std::function<Metrics(M&)> figures;
    if (recipe.figures) figures = [&](M& of) { return recipe.figures(of, *strategy); };
    SupervisedTask<M, D, Loss> task(
        {.model = model,
         .loader = loader,
         .loss = loss,
         .step = {.run = run, .spec = spec, .dealt = dealt, .counts_elements = true},
         .figures = figures});
    const auto evaluate = [&] { return recipe.evaluate(made, eval_ranks, autocast); };
    const auto plan = [&](int64_t limit) { return task.plan(limit); };
    return run_recipe(config, spec, options,
                      {.run = run,
                       .task = task.task(evaluate),
                       .plan = plan,
                       .files = recipe.files ? recipe.files(made) : CheckpointFiles{},
                       .labels = recipe.labels,
                       .question = recipe.question,
                       .start = start});
  };
  const TrainResult result = run.attempts(attempt);
  comm = run.comm();
  return result;
}

}  // namespace lockstep::inline v0
