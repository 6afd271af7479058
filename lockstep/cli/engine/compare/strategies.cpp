#include "lockstep/cli/engine/compare/strategies.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "lockstep/cli/engine/compare/methods.h"
#include "lockstep/cli/engine/compare/scaling.h"
#include "lockstep/cli/engine/train/arguments.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/mesh/shared_copies.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/strategy.h"

namespace lockstep::engine {
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

// What compare decides for every run itself.
void check_passed_on(const Arguments& arguments) {
  for (const std::string& argument : with_dashes(arguments)) {
    for (const std::string own :
         {"--strategy", "--amp", "--config", "--resume", "--record", "--quiet"}) {
      if (argument == own || argument.starts_with(own + "="))
        throw InvalidArgument(argument + " does not go with compare, which chooses it");
    }
  }
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
  const std::vector<std::string> names = way_names();
  std::vector<ComparedWay> ways;
  std::istringstream list(text);
  for (std::string name; std::getline(list, name, ',');) {
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string near = nearest_name(name, names);
      throw InvalidArgument("there is no strategy '" + name + "' to compare" +
                            (near.empty() ? "" : "; did you mean '" + near + "'?") +
                            "; choose from " + joined(names));
    }
    ComparedWay way{.name = name, .strategy = name, .bf16 = name.ends_with(kHalf)};
    if (way.bf16) way.strategy.resize(name.size() - std::string_view(kHalf).size());
    way.alone = way.strategy == kSingle;
    if (way.alone) way.strategy = strategy_names().front();
    const bool there = std::any_of(
        ways.begin(), ways.end(), [&](const ComparedWay& other) { return other.name == way.name; });
    if (!there) ways.push_back(std::move(way));
  }
  if (ways.empty()) throw InvalidArgument("--strategies is empty; choose from " + joined(names));
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
  app.add_option("--threads-per-rank", result.threads,
                 "each rank is a device of so many threads [processors / ranks]");
  app.add_option("--data", result.data, "as `lockstep train` takes it [the recipe's built-in set]")
      ->type_name("PATH");
  app.add_option("--timeout", result.timeout, "seconds that a strategy may take [86400]");
  app.add_option("--output", result.output, "directory for everything [runs/compare]")
      ->type_name("DIR");
  app.add_option("--json", result.json, "also write comparison.json to this file")
      ->type_name("FILE");
  cli::add_example(app, {"lockstep compare mnist --strategies single,ddp,zero3 --epochs 1",
                         "lockstep compare --scaling 1,2,4 --data digits"});
  parse(app, options);
  refuse_zeros(app, {"--threads-per-rank"});
  result.train = app.remaining();
  check_passed_on(result.train);
  result.ways = parse_ways(strategies);
  if (!scaling.empty()) result.scaling = parse_sizes(scaling);
  if (const int ranks = result.mesh.empty() ? 1 : ranks_of(result.mesh);
      nproc->empty() && ranks > 1)
    result.nproc = ranks;
  if (result.nproc < 1 || result.nproc > launch::kMostRanksOfAHost) {
    throw InvalidArgument("--nproc is " + std::to_string(result.nproc) + "; give 1 to " +
                          std::to_string(launch::kMostRanksOfAHost));
  }
  if (!result.mesh.empty())
    (void)shared_copies(result.mesh, static_cast<int>(result.nproc));  // throws
  if (result.threads < 0)
    throw InvalidArgument("--threads-per-rank is " + std::to_string(result.threads) +
                          "; give 1 or more");
  if (!(result.timeout > 0)) throw InvalidArgument("--timeout must be more than 0 seconds");
  return result;
}

std::vector<ComparedJob> plan_strategies(const StrategiesArguments& arguments,
                                         const std::vector<std::string>& train) {
  std::vector<ComparedJob> jobs;
  const auto add = [&](const ComparedWay& way, int64_t nproc, bool for_scaling) {
    ComparedJob& job = jobs.emplace_back(
        ComparedJob{.name = way.name,
                    .writes = way.strategy,
                    .nproc = nproc,
                    .for_scaling = for_scaling,
                    .folder = job_folder(arguments.output, way.name, for_scaling ? nproc : 0),
                    .command = train});
    const Arguments words = words_of(way, job, arguments);
    job.command.insert(job.command.end(), words.begin(), words.end());
  };
  for (const ComparedWay& way : arguments.ways) add(way, way.alone ? 1 : arguments.nproc, false);
  for (const ComparedWay& way : arguments.ways) {
    if (way.alone) continue;
    for (const int64_t size : other_sizes(arguments.scaling, arguments.nproc)) add(way, size, true);
  }
  return jobs;
}

int compare_strategies(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    StrategiesArguments parsed = parse_strategies_arguments(arguments);
    if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone)
      throw InvalidArgument("compare starts the ranks itself; call it without a launcher");
    const RunClaim claim(parsed.output, process_env());
    check_result_files({parsed.json});
    const Recipe& recipe = recipe_of(parsed.recipe);
    const bool built_in = parsed.data.empty() || parsed.data == recipe.built_in;
    Comparison begun = comparison_of_this_machine();
    begun.data = built_in ? recipe.built_in : parsed.data;
    if (built_in) parsed.data = (fs::path(parsed.output) / "data").string();
    if (parsed.threads == 0)
      parsed.threads = std::max<int64_t>(1, usable_cpu_count() / parsed.nproc);
    const std::vector<std::string> train{engine_program().string(), "train"};
    std::vector<ComparedJob> jobs = plan_strategies(parsed, train);
    // All that can be seen before the first way runs for minutes: its options, then its data.
    TrainConfig shared;
    const ComparedJob* largest = &jobs.front();
    for (const ComparedJob& job : jobs) {
      shared = plan_of(job, train.size()).config;
      if (job.nproc > largest->nproc) largest = &job;
    }
    TrainPlan plan = plan_of(*largest, train.size());
    plan.built_in = built_in;  // one set for all runs
    const OutputFolder tried = check_train_input(plan, {});
    begun.subject = recipe.subject.empty() ? shared.model : recipe.subject;
    begun.model = shared.model;
    begun.recipe = recipe.name;
    begun.held_out = recipe.held_out;
    begun.perplexity = recipe.kind == RecipeKind::kLanguage;
    begun.nproc = parsed.nproc;
    begun.threads_per_rank = parsed.threads;
    return run_comparison({.begun = std::move(begun),
                           .jobs = std::move(jobs),
                           .former_names = compared_names(),
                           .output = parsed.output,
                           .json = parsed.json,
                           .timeout = parsed.timeout});
  });
}

std::vector<std::string> compared_names() {
  std::vector<std::string> names = way_names();
  for (const TrainingMethod& method : training_methods()) names.emplace_back(method.name);
  return names;
}

}  // namespace lockstep::engine
