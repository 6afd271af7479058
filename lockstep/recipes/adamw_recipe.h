// A recipe that trains by AdamW: what text and lm have in common.
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
#include "lockstep/optim/decay_groups.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/train/supervised_task.h"

namespace lockstep {

// M, D and Loss as SupervisedTask takes them. All that is referred to must outlive the call.
template <typename M, data::Dataset D, typename Loss>
struct AdamWRecipe {
  using Autocast = std::optional<amp::AutocastSettings>;

  const D& train;
  int64_t held_out = 0;     // samples to evaluate on
  std::function<M()> make;  // the model, perhaps drawn
  // Where make() gives a model without values: what gives it those (Strategy::set_up_undrawn()).
  using InitialOf = std::function<Strategy::Initial(const M&)>;
  InitialOf initial = {};
  Loss loss = {};                       // as SupervisedTask calls it
  std::optional<double> max_norm = {};  // the gradients' global one, at most
  // `ranks`: those that evaluate samples of their own (Strategy::evaluation_ranks()).
  std::function<Evaluation(M&, Communicator& ranks, const Autocast&)> evaluate;
  std::function<CheckpointFiles(const M&)> files;
  std::function<Metrics(const M&)> figures = {};  // TrainTask's
  std::vector<std::string> labels = {};           // RecipeParts'
  std::string question;                           // TrainResult's
};

// Weight decay of all but norms and biases. `start`: before the data were loaded. Collective. Throws as
// train_recipe().
template <typename M, data::Dataset D, typename Loss>
TrainResult train_by_adamw(Communicator& comm, const TrainConfig& config,
                           const TrainRunOptions& options,
                           std::chrono::steady_clock::time_point start,
                           const AdamWRecipe<M, D, Loss>& recipe) {
  check_against_data(config, recipe.train.size(), recipe.held_out);
  const auto strategy = options.strategy ? options.strategy : strategy_of(config);
  const M made = drawn_from_seed(comm, config.seed, recipe.make,
                                 recipe.initial ? Draws::kOfAll : Draws::kOfRankZero);
  const auto adamw = torch::optim::AdamWOptions(config.lr).weight_decay(config.weight_decay);
  ModelOnRanks run({.model = made.ptr(),
                    .strategy = strategy,
                    .comm = comm,
                    .groups = [&] { return optim::decay_groups(*made, adamw); },
                    .algorithm = adamw,
                    .initial = recipe.initial ? recipe.initial(made) : nullptr});
  const auto autocast = autocast_of(config, comm);
  const TrainResult result = run.attempts([&] {
    Communicator& ranks = run.comm();
    const DealtSamples dealt = deal(config, recipe.train.size(), *strategy, ranks);
    data::Loader loader(recipe.train, *dealt.sampler,
                        {.batch_size = dealt.batch_size,
                         .num_workers = static_cast<int>(config.workers),
                         .device = device_of(*made)});
    StrategyModel<M> model(made, strategy);
    Communicator judges = strategy->evaluation_ranks(ranks);
    SupervisedTask<M, D, Loss> task(
        {.model = model,
         .run = run,
         .sampler = *dealt.sampler,
         .loader = loader,
         .loss = recipe.loss,
         .learning_rate = rates_of(config, loader.batches() / batches_per_step(*strategy, ranks),
                                   {.ratio = config.warmup_ratio}),
         .autocast = autocast,
         .max_norm = recipe.max_norm,
         .shares = dealt.shares});
    TrainTask steps = task.task([&] { return recipe.evaluate(model.module(), judges, autocast); });
    if (recipe.figures)
      steps.figures = [&, of_update = std::move(steps.figures)](int64_t step) {
        Metrics figures = of_update(step);
        const Metrics more = recipe.figures(model.module());
        figures.insert(figures.end(), more.begin(), more.end());
        return figures;
      };
    return run_recipe(
        config, options,
        {.run = run,
         .task = std::move(steps),
         .plan_activations = [&](int64_t limit) { return task.plan_activations(limit); },
         .files = recipe.files(model.module()),
         .labels = recipe.labels,
         .question = recipe.question,
         .start = start});
  });
  comm = run.comm();
  return result;
}

}  // namespace lockstep
