#include "lockstep/cli/engine/train/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/cli/engine/train/auto_mesh.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/device/choose.h"
#include "lockstep/launch/agent.h"
#include "lockstep/pretrained/language_model.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/recipes/lm_data.h"
#include "lockstep/recipes/recipe_actions.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/report/metrics_endpoint.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

// In a file of settings 0 stands for the default; for that an option is left out.
void refuse_unsaid(const TrainConfig& config, const std::string& name, const std::string& text) {
  const bool zero = (name == "lr" && config.lr == 0) ||
                    (name == "batch_size" && config.batch_size == 0) ||
                    (name == "micro_batches" && config.micro_batches == 0);
  if (!zero) return;
  throw InvalidArgument(name + " is '" + text + "'; give a number above 0, or leave it out");
}

// An error about a setting begins with the field's name. Where an option gave it, the user knows
// the option's name.
template <typename Function>
auto under_options(const TrainArguments& arguments, const Function& function) {
  try {
    return function();
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    const std::string field = message.substr(0, message.find_first_of(" :"));
    const auto given = std::find_if(arguments.settings.rbegin(), arguments.settings.rend(),
                                    [&](const auto& setting) { return setting.field == field; });
    if (given == arguments.settings.rend()) throw;
    throw InvalidArgument(given->option + message.substr(field.size()));
  }
}

TrainConfig apply(TrainConfig config, const TrainArguments& arguments) {
  if (!arguments.config_file.empty()) {
    config = train_config_from_json(read_named_file(arguments.config_file), arguments.config_file,
                                    config);
  }
  under_options(arguments, [&] {
    for (const auto& setting : arguments.settings) {
      set_field(config, setting.field, setting.text);
      refuse_unsaid(config, setting.field, setting.text);
    }
  });
  return config;
}

// "mnist|text|lm": what the table of the options says of the recipe.
std::string recipe_words() {
  std::string words;
  for (const Recipe& recipe : recipes()) words += (words.empty() ? "" : "|") + recipe.name;
  return words;
}

// The recipe decides which options exist, so it is looked for before they are parsed. If no
// argument is a recipe's name, it is the first recipe, whose options --help shows.
const Recipe& recipe_among(const Arguments& arguments) {
  for (const std::string& argument : arguments) {
    if (const Recipe* recipe = find_recipe(argument)) return *recipe;
  }
  return recipes().front();
}

// The recorded settings of outer steps go with the strategy that has them; options that ask for
// others stay, and are refused.
void drop_outer_steps(const TrainConfig& recorded, TrainConfig* config) {
  if (!trains_apart(recorded) || trains_apart(*config)) return;
  const TrainConfig defaults;
  const auto drop = [&](auto TrainConfig::* member) {
    if (config->*member == recorded.*member) config->*member = defaults.*member;
  };
  drop(&TrainConfig::diloco_steps);
  drop(&TrainConfig::diloco_lr);
  drop(&TrainConfig::diloco_momentum);
}

// Keeps the number of samples of a step on another number of ranks. A launcher that starts the
// ranks again repeats a --batch-size that was meant for the first number of ranks. Ranks that
// cannot share the samples equally have unequal batches.
void keep_batches(const TrainArguments& arguments, const TrainConfig& recorded,
                  TrainConfig* config) {
  const int64_t before = batches_of_step(recorded);
  int64_t now = 0;
  try {
    now = batches_of_step(*config);
  } catch (const InvalidArgument& error) {
    if (config->mesh.empty() || arguments.gives("mesh")) throw;
    // No option gave it.
    throw InvalidArgument(std::string(error.what()) + "; the run was begun with --mesh " +
                          config->mesh + ", and goes on with another one where --mesh is given");
  }
  if (now < 1) return;  // resolved() refuses 0
  const bool asked = arguments.gives("batch_size") || arguments.gives("step_samples");
  if (!arguments.goes_on && (before == now || asked)) return;
  const int64_t samples = samples_of_step(recorded);
  if (samples < 1) return;
  if (samples % now != 0 && !shares_unequally(*config) && recorded.sampler != "partition") {
    const bool divided = divides_model(*config);
    throw InvalidArgument("cannot resume: a step has " + std::to_string(samples) +
                          " samples, which the " + std::to_string(now) +
                          (divided ? " parts that mesh " + config->mesh + " has of a batch"
                                   : " logical ranks of strategy " + config->strategy) +
                          " cannot share equally; give another " +
                          (divided ? "number of ranks, or another --mesh" : "--strategy"));
  }
  const StepShares shares = shares_of_step(samples, now);
  config->batch_size = shares.largest;
  config->step_samples = recorded.sampler == "partition" ? 0 : shares.step_samples;
}

// The stage of ZeRO that a strategy of a divided model is.
int stage_of(const std::string& strategy) {
  const std::vector<std::string> known{"ddp", "zero1", "zero2", "zero3"};
  const auto found = std::find(known.begin(), known.end(), strategy);
  if (found == known.end())
    throw InvalidArgument("--mesh auto is for strategy " + joined(known) + ", and it is '" +
                          strategy + "'; give one of them");
  return static_cast<int>(found - known.begin());
}

std::optional<TrainerState> state_of(const fs::path& checkpoint) {
  const std::string file = (checkpoint_at(checkpoint) / "trainer.json").string();
  try {
    return trainer_state_from_json(read_small_file(file), file);
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

// It is checked before processes start, which would all report it.
void check_epochs(const TrainPlan& plan, int64_t samples) {
  if (!plan.stands || plan.stands->steps_per_epoch == 0) return;
  const int64_t steps = steps_per_epoch(plan.config, samples);
  if (steps == plan.stands->steps_per_epoch) return;
  // Another strategy may make another number of steps of the same data.
  const bool same_data = plan.recorded && samples_of_step(*plan.recorded) > 0 &&
                         steps_per_epoch(*plan.recorded, samples) == plan.stands->steps_per_epoch;
  throw InvalidArgument(
      "cannot resume: an epoch of " + plan.config.output + " has " +
      std::to_string(plan.stands->steps_per_epoch) + " steps" +
      (same_data
           ? " under strategy " + plan.recorded->strategy + ", and " + std::to_string(steps) +
                 " under " + plan.config.strategy +
                 ": logical ranks leave out what fills no whole step; resume with --strategy " +
                 plan.recorded->strategy
           : ", and one of " + plan.config.data + " has " + std::to_string(steps) +
                 "; resume with the data that it was begun with"));
}

}  // namespace

bool TrainArguments::gives(const std::string& field) const {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const Setting& setting) { return setting.field == field; });
}

TrainArguments parse_train_arguments(const Arguments& arguments) {
  const Recipe& likely = recipe_among(arguments);
  CLI::App app("Trains " + likely.trains +
                   ", on one or several ranks. The options below are those of the recipe " +
                   likely.name + ".",
               "lockstep train");
  TrainArguments result;
  std::string dropout;
  app.add_option("recipe", result.recipe, "what to train: " + recipe_names_text())
      ->required()
      ->type_name(recipe_words())
      ->group(kDataGroup);
  struct Slot {
    const ConfigField* field;
    std::string text;
    CLI::Option* option;
  };
  std::deque<Slot> slots;
  const auto fields = config_fields(likely.name);
  for (const char* group : {kDataGroup, kTrainingGroup, kRanksGroup, kOutputGroup}) {
    for (const ConfigField& field : fields) {
      if (field.name == "recipe" || field.group != group) continue;
      Slot& slot = slots.emplace_back(Slot{&field, {}, nullptr});
      // A switch that is off is not shown.
      const bool says = !field.fallback.empty() && !(field.is_switch && field.fallback == "false");
      slot.option = app.add_option(option_name(field.name), slot.text,
                                   field.help + (says ? " [" + field.fallback + "]" : ""))
                        ->take_last()
                        ->type_name(field.is_switch ? "[true|false]" : field.type)
                        ->group(group);
      if (field.is_switch) slot.option->expected(0, 1);
    }
  }
  const CLI::Option* dropout_option = nullptr;
  if (likely.kind == RecipeKind::kImages) {
    dropout_option = app.add_option("--dropout", dropout, "both dropouts at once; 0: none")
                         ->take_last()
                         ->type_name("NUMBER")
                         ->group(kTrainingGroup);
  }
  app.add_option("--config", result.config_file,
                 "JSON file of settings, such as a run's config.json; options win over it")
      ->type_name("FILE")
      ->group(kDataGroup);
  app.add_option("--json", result.json, "also write the result to this file")
      ->type_name("FILE")
      ->group(kOutputGroup);
  app.add_option(
         "--record", result.record,
         "write the run step by step to this file: losses, evaluations, where a step's time "
         "went, memory; `lockstep compare` reads it")
      ->type_name("FILE")
      ->group(kOutputGroup);
  app.add_flag("--resume", result.resume, "go on from OUTPUT/checkpoints/last")
      ->group(kOutputGroup);
  app.add_flag("--quiet", result.quiet, "no summary at the end")->group(kOutputGroup);
  std::string on_failure;
  app.add_option("--on-failure", on_failure,
                 "what follows when a rank dies: stop, restart of all ranks from the last "
                 "checkpoint, replace: the others go on in place with a new one, and no step is "
                 "lost, or shrink: they go on without it [stop; with --max-restarts restart]")
      ->type_name("stop|restart|replace|shrink")
      ->group(kRanksGroup);
  app.add_option("--max-restarts", result.max_restarts,
                 "how often all ranks are restarted, or single ones replaced [0]")
      ->group(kRanksGroup);
  app.add_option("--spare-ranks", result.spare_ranks,
                 "with --on-failure replace: so many processes that have started already take the "
                 "place of a rank that dies [0]")
      ->group(kRanksGroup);
  cli::add_example(app, {"lockstep train " + likely.name + " --data " + likely.built_in +
                         " --nproc 2 --output runs/" + likely.name});
  parse(app, arguments);
  if (&recipe_of(result.recipe) != &likely) {
    throw InvalidArgument("the recipe is " + result.recipe + ", but '" + likely.name +
                          "' comes before it; give the recipe first");
  }
  if (result.max_restarts < 0) throw InvalidArgument("--max-restarts must not be negative");
  result.on_failure = launch::parse_on_failure(on_failure, result.max_restarts);
  launch::LaunchOptions spares;
  spares.spare_ranks = result.spare_ranks;
  spares.on_failure = result.on_failure;
  launch::check_spare_ranks(spares);
  if (result.on_failure == launch::OnFailure::kReplace && !result.record.empty())
    throw InvalidArgument(
        "--record keeps every step of one process, and --on-failure=replace has several of a rank; "
        "give one of them");
  if (result.on_failure == launch::OnFailure::kShrink && !result.record.empty())
    throw InvalidArgument(
        "--record keeps every step of all ranks, and with --on-failure=shrink some may die; give "
        "one of them");
  if (!result.record.empty() && result.record == result.json)
    throw InvalidArgument("--record and --json are both " + result.json + "; give two files");
  if (dropout_option != nullptr && dropout_option->count() > 0) {
    for (const char* field : {"dropout1", "dropout2"})
      result.settings.push_back({field, dropout, "--dropout"});
  }
  for (const Slot& slot : slots) {
    if (slot.option->count() > 0)
      result.settings.push_back({slot.field->name, slot.text, option_name(slot.field->name)});
  }
  return result;
}

bool goes_on_by_itself(const TrainArguments& arguments) {
  const RunFolder folder{apply(default_config(arguments.recipe), arguments).output};
  return left_by_this_job(folder.root, process_env()) && checkpoint_exists(folder.last());
}

TrainPlan make_train_plan(const TrainArguments& arguments, std::optional<int> ranks) {
  TrainPlan plan;
  TrainConfig recorded;
  plan.config = default_config(arguments.recipe);
  const Recipe& recipe = recipe_of(arguments.recipe);
  if (arguments.resume) {
    const RunFolder folder{apply(plan.config, arguments).output};
    if (!checkpoint_exists(folder.last())) {
      throw CheckpointError(
          folder.root.string() +
          ": has no checkpoints/last to resume; leave --resume out, or give --output");
    }
    read_checkpoint(folder.last(), CheckpointParts::kModelAndConfig);
    const auto found = recorded_config(folder.last());
    if (!found)
      throw CheckpointError(folder.last().string() + ": was not written by lockstep train");
    recorded = *found;
    plan.recorded = recorded;
    plan.stands = state_of(folder.last());
    if (recorded.recipe != recipe.name) {
      throw InvalidArgument("cannot resume: " + folder.root.string() +
                            " holds a run of the recipe " + recorded.recipe + ", not " +
                            recipe.name + "; give that recipe");
    }
    plan.config = recorded;
    plan.config.trace_steps.clear();  // of the steps of then; an option asks for those of now
    plan.config.trace_operators = false;
    plan.config.nvtx = false;
    plan.config.output = folder.root.string();
  }
  plan.config = apply(plan.config, arguments);
  if (arguments.resume) under_options(arguments, [&] { drop_outer_steps(recorded, &plan.config); });
  if (arguments.gives("batch_size")) {
    if (arguments.gives("step_samples"))
      throw InvalidArgument(
          "--batch-size is a rank's and --step-samples all ranks' together; give one of them");
    plan.config.step_samples = 0;
  }
  if (ranks) {
    if (arguments.gives("nproc") && plan.config.nproc != *ranks && !arguments.goes_on) {
      throw InvalidArgument("--nproc is " + std::to_string(plan.config.nproc) +
                            ", but a launcher has started " + std::to_string(*ranks) +
                            " ranks; leave --nproc out");
    }
    plan.config.nproc = *ranks;
  } else if (plan.config.nproc > launch::kMostRanksOfAHost) {
    throw InvalidArgument("--nproc is " + std::to_string(plan.config.nproc) + "; give at most " +
                          std::to_string(launch::kMostRanksOfAHost) + ", the ranks of one host");
  }
  if (arguments.resume) keep_batches(arguments, recorded, &plan.config);
  if (plan.config.data.empty()) {
    throw InvalidArgument("--data is missing; give a directory with " + recipe.files + ", or '" +
                          recipe.built_in + "' for the built-in data set");
  }
  plan.built_in = plan.config.data == recipe.built_in;
  if (plan.built_in) plan.config.data = (fs::path(plan.config.output) / "data").string();
  const auto make_absolute = [](std::string& path) {
    path = fs::absolute(path).lexically_normal().string();
  };
  make_absolute(plan.config.data);
  if (!plan.config.vocab.empty()) make_absolute(plan.config.vocab);
  if (plan.config.tokenizer != kCharacterTokens && fs::exists(plan.config.tokenizer))
    make_absolute(plan.config.tokenizer);
  if (recipe.kind != RecipeKind::kImages) {
    const auto is_one = recipe.kind == RecipeKind::kTexts ? is_text_model : is_language_model;
    if (const auto found = find_in_run(plan.config.model, is_one)) plan.config.model = *found;
    if (fs::is_directory(plan.config.model)) make_absolute(plan.config.model);
  }
  if (plan.config.mesh == kAutoMesh) {
    std::optional<int> zero;
    if (arguments.gives("strategy")) zero = stage_of(plan.config.strategy);
    plan.chosen =
        under_options(arguments, [&] { return choose_mesh(zero, process_env(), &plan.config); });
  }
  plan.config = under_options(arguments, [&] { return resolved(plan.config); });
  if (!plan.config.device.empty())
    (void)device::choose_device(plan.config.device, 0,
                                arguments.gives("device") ? "--device" : "device");
  if (arguments.resume) check_resumable(recorded, plan.config);
  return plan;
}

void check_replacement(const TrainPlan& plan, const TrainArguments& arguments) {
  const TrainConfig& config = plan.config;
  const std::string replaced = ", and --on-failure replace puts a new rank in a dead one's place, ";
  under_options(arguments, [&] {
    if (config.ema > 0)
      throw InvalidArgument("ema is " + nlohmann::json(config.ema).dump() + replaced +
                            "which would have no average; leave out one of them");
    if (trains_apart(config))
      throw InvalidArgument("strategy is " + config.strategy + replaced +
                            "which would not have its parameters; take --on-failure restart, or "
                            "another strategy");
    if (config.sync_batch_norm)
      throw InvalidArgument("sync_batch_norm is true" + replaced +
                            "which its layers could not follow; leave out one of them");
  });
}

void check_shrinking(const TrainPlan& plan, const TrainArguments& arguments) {
  const TrainConfig& config = plan.config;
  const std::string without = ", and with --on-failure shrink the others go on without a dead rank";
  under_options(arguments, [&] {
    if (config.ema > 0)
      throw InvalidArgument("ema is " + nlohmann::json(config.ema).dump() + without +
                            " in a step whose parameters the average may have already; leave out "
                            "one of them");
    if (config.sync_batch_norm)
      throw InvalidArgument("sync_batch_norm is true" + without +
                            ", which its layers could not do; leave out one of them");
    if (!strategy_of(config)->traits().rebinds)
      throw InvalidArgument(
          (config.mesh.empty() ? "strategy is " + config.strategy : "mesh is " + config.mesh) +
          without +
          ", whose part of the parameters or of the optimizer's state they do "
          "not have; take --on-failure replace or restart, or strategy ddp");
  });
}

OutputFolder check_train_input(const TrainPlan& plan, const TrainArguments& arguments) {
  const TrainConfig& config = plan.config;
  const RecipeActions& actions = actions_of(recipe_of(config.recipe));
  under_options(arguments, [&] { actions.check_model(config); });
  OutputFolder output = under_options(arguments, [&] { return OutputFolder(config.output); });
  (void)RunClaim(config.output, process_env());
  under_options(arguments, [&] {
    if (config.metrics_port > 0)
      check_metrics_ports("metrics_port", config.metrics_port, config.nproc);
  });
  check_output_file(arguments.json);
  check_output_file(arguments.record);
  if (arguments.resume) read_checkpoint(RunFolder{config.output}.last());
  provide_data(plan);
  const RecipeCounts counts = under_options(arguments, [&] {
    const RecipeCounts found = actions.validate(config);
    check_against_data(config, found.train, found.held_out);
    return found;
  });
  check_epochs(plan, counts.train);
  return output;
}

std::string finished_text(const TrainPlan& plan) {
  const TrainConfig& config = plan.config;
  if (!plan.stands) return {};
  const TrainerState& state = *plan.stands;
  const bool all_steps = config.max_steps > 0 && state.step >= config.max_steps,
             all_epochs = state.epoch >= config.epochs;
  if (!all_steps && !all_epochs) return {};
  const std::string output = shell_word(config.output);
  std::string text = config.output + " is finished: " + std::to_string(state.step) + " steps, " +
                     std::to_string(state.epoch) + (state.epoch == 1 ? " epoch" : " epochs") +
                     "; there is nothing left to resume.\n";
  if (!all_epochs)
    text += "For more steps give --resume and a greater --max-steps, or --max-steps 0.\n";
  else if (config.schedule == "constant")
    text += "For more epochs give --resume and a greater --epochs" +
            std::string(all_steps ? " and --max-steps.\n" : ".\n");
  else
    text +=
        "Its learning rate has come to its end. For more epochs begin another run from it, with " +
        std::string(recipe_of(config.recipe).kind == RecipeKind::kImages ? "--init-from "
                                                                         : "--model ") +
        shell_word(RunFolder{config.output}.best().string()) + " and an --output of its own.\n";
  return text + "To evaluate it: " + shell_word(lockstep_command()) + " eval --checkpoint " +
         output + "\n";
}

void provide_data(const TrainPlan& plan) {
  if (!plan.built_in) return;
  const Recipe& recipe = recipe_of(plan.config.recipe);
  actions_of(recipe).generate(recipe, plan.config.data);
}

}  // namespace lockstep::inline v0::engine
