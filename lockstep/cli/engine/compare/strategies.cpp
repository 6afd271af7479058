#include "lockstep/cli/engine/compare/strategies.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "lockstep/bench/rows.h"
#include "lockstep/cli/engine/train/arguments.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/mesh/shared_copies.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "single";
constexpr const char* kHalf = "-bf16";
constexpr const char* kDefault = "single,ddp,ddp-bf16,average,horovod,zero1,zero3";

std::vector<std::string> way_names() {
  std::vector<std::string> names{kSingle};
  names.insert(names.end(), strategy_names().begin(), strategy_names().end());
  for (size_t i = 0, count = names.size(); i < count; ++i) names.push_back(names[i] + kHalf);
  return names;
}

Arguments words_of(const ComparedWay& way, const ComparedJob& job,
                   const StrategiesArguments& arguments) {
  Arguments words{arguments.recipe};
  words.insert(words.end(), arguments.train.begin(), arguments.train.end());
  const auto add = [&](const std::string& option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  add("--data", arguments.data);
  add("--nproc", std::to_string(job.nproc));
  add("--strategy", way.strategy);
  if (!arguments.mesh.empty() && divides_parameters(way.strategy) && !job.for_scaling)
    add("--mesh", arguments.mesh);
  if (way.bf16) add("--amp", "bf16");
  add("--output", job.folder.string());
  add("--record", job.result().string());
  words.emplace_back("--quiet");
  return words;
}

TrainPlan plan_of(const ComparedJob& job, size_t words_before) {
  const auto first = job.command.begin() + static_cast<ptrdiff_t>(words_before);
  return make_train_plan(parse_train_arguments({first, job.command.end()}), std::nullopt);
}

}  // namespace

std::vector<ComparedWay> parse_ways(const std::string& text) {
  std::string dashed = text;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::vector<ComparedWay> ways;
  for (const std::string& name :
       bench::parse_choices("--strategies", "strategy", dashed, way_names())) {
    ComparedWay way{.name = name, .strategy = name, .bf16 = name.ends_with(kHalf)};
    if (way.bf16) way.strategy.resize(name.size() - std::string_view(kHalf).size());
    way.alone = way.strategy == kSingle;
    if (way.alone) way.strategy = strategy_names().front();
    ways.push_back(std::move(way));
  }
  return ways;
}

StrategiesArguments parse_strategies_arguments(const Arguments& arguments) {
  StrategiesArguments result;
  Arguments options = arguments;
  if (!options.empty() && !options[0].starts_with("-")) {
    result.recipe = recipe_of(options[0]).name;
    options.erase(options.begin());
  }
  CLI::App app(
      "Trains one recipe (" + recipe_names_text() +
          "; [text]) by several strategies, one after another, and puts them side by side: a "
          "table, "
          "comparison.json, comparison.md and comparison.html with pictures. Further options are "
          "those of `lockstep train RECIPE`, such as --model, --epochs, --batch-size. With "
          "--programs DIR it compares programs instead, and with --scaling alone numbers of ranks: "
          "their --help says more.",
      "lockstep compare [RECIPE]");
  app.allow_extras();
  std::string strategies = kDefault, scaling;
  app.add_option("--strategies", strategies,
                 joined(way_names()) + " [" + kDefault +
                     "]; single: one rank; ...-bf16: with "
                     "--amp bf16")
      ->type_name("NAME,...");
  const auto* nproc =
      app.add_option("--nproc", result.nproc, "ranks [2, or as many as --mesh has]");
  app.add_option("--mesh", result.mesh,
                 "such as data=2,shard=2: who shares a copy of the parameters, with zero3 and fsdp")
      ->type_name("AXIS=N,...");
  app.add_option("--scaling", scaling, "also on these numbers of ranks, such as 1,2,4")
      ->type_name("N,...");
  app.add_option("--data", result.data, "as `lockstep train` takes it [the recipe's built-in set]")
      ->type_name("PATH");
  result.common.add_to(app, "a strategy", "comparison.json");
  cli::add_example(app, {"lockstep compare mnist --strategies single,ddp,zero3 --epochs 1",
                         "lockstep compare --scaling 1,2,4 --data digits"});
  parse(app, options);
  result.common.check(app);
  result.train = app.remaining();
  refuse_chosen(result.train,
                {"--strategy", "--amp", "--config", "--resume", "--record", "--quiet"});
  result.ways = parse_ways(strategies);
  if (!scaling.empty()) result.scaling = bench::parse_rank_counts("--scaling", scaling);
  if (const int ranks = result.mesh.empty() ? 1 : ranks_of(result.mesh);
      nproc->empty() && ranks > 1)
    result.nproc = ranks;
  if (result.nproc < 1 || result.nproc > launch::kMostRanksOfAHost) {
    throw InvalidArgument("--nproc is " + std::to_string(result.nproc) + "; give 1 to " +
                          std::to_string(launch::kMostRanksOfAHost));
  }
  if (!result.mesh.empty())
    (void)shared_copies(result.mesh, static_cast<int>(result.nproc));  // throws
  return result;
}

std::vector<ComparedJob> plan_strategies(const StrategiesArguments& arguments,
                                         const std::vector<std::string>& train) {
  std::vector<ComparedRow> rows;
  for (const ComparedWay& way : arguments.ways)
    rows.push_back({.name = way.name, .writes = way.strategy, .has_ranks = !way.alone});
  return plan_jobs(rows, arguments.common, arguments.nproc, arguments.scaling,
                   [&](size_t i, const ComparedJob& job) {
                     std::vector<std::string> command = train;
                     const Arguments words = words_of(arguments.ways[i], job, arguments);
                     command.insert(command.end(), words.begin(), words.end());
                     return command;
                   });
}

int compare_strategies(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    StrategiesArguments parsed = parse_strategies_arguments(arguments);
    const std::vector<std::string> train{job_program(engine_program()), "train"};
    const auto claim = parsed.common.begin(parsed.nproc);
    const Recipe& recipe = recipe_of(parsed.recipe);
    const bool built_in = parsed.data.empty() || parsed.data == recipe.built_in;
    bench::Comparison begun = begun_comparison(parsed.common, parsed.nproc);
    begun.data = built_in ? recipe.built_in : parsed.data;
    if (built_in) parsed.data = (fs::path(parsed.common.output) / "data").string();
    const std::vector<ComparedJob> jobs = plan_strategies(parsed, train);
    // Everything is checked that can be checked before the first way runs for minutes: its options,
    // then its data.
    TrainConfig shared;
    const ComparedJob* largest = &jobs.front();
    for (const ComparedJob& job : jobs) {
      shared = plan_of(job, train.size()).config;
      if (job.nproc > largest->nproc) largest = &job;
    }
    TrainPlan plan = plan_of(*largest, train.size());
    plan.built_in = built_in;  // one set for all runs
    // The folder that it makes goes with its result.
    static_cast<void>(check_train_input(plan, {}));
    begun.subject = recipe.subject.empty() ? shared.model : recipe.subject;
    begun.model = shared.model;
    begun.recipe = recipe.name;
    begun.held_out = recipe.held_out;
    begun.perplexity = recipe.kind == RecipeKind::kLanguage;
    return run_comparison(std::move(begun), jobs, parsed.common);
  });
}

}  // namespace lockstep::inline v0::engine
