#include "lockstep/cli/engine/compare/programs.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "lockstep/cli/engine/compare/programs_input.h"
#include "lockstep/cli/engine/compare/scaling.h"
#include "lockstep/cli/engine/compare/strategies.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kMostRanks = 1024;
constexpr const char* kAbout =
    "Trains the same model on the same texts with several programs, one after another, and puts "
    "them side by side: a table, comparison.json, comparison.md and comparison.html with pictures.";

void check_whole(const std::string& option, const std::string& text, int64_t least) {
  if (parse_int(text, least)) return;
  throw InvalidArgument(option + " is '" + text + "'; give a whole number of " +
                        std::to_string(least) + " or more");
}

void check_choice(const std::string& option, const std::string& text,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices) list += (list.empty() ? "" : " or ") + choice;
  throw InvalidArgument(option + " is '" + text + "'; choose " + list);
}

// Options of every program, as text: what was given goes on.
struct PassedOption {
  const char* name;
  const char* about;
  int64_t least;  // -1: no number
  const char* type = "N";
  std::string value = {};
};

std::vector<PassedOption> passed_options() {
  return {{"--recipe", "the tutorial's own settings, or those for a model from scratch [default]",
           -1, "default|tutorial"},
          {"--max-steps", "end after so many steps [all]", 1},
          {"--epochs", "passes over the training set [3, tutorial: 1]", 1},
          {"--seed", "of the weights and the order of the texts [123]", 0},
          {"--batch-size", "texts of a rank's step [32]", 1},
          {"--max-length", "tokens of a text, at most [128]", 3},
          {"--padding", "to how many tokens texts are filled up [longest, tutorial: max_length]",
           -1, "max_length|longest|packed"}};
}

void check_passed(const PassedOption& option) {
  const std::string name = option.name;
  if (option.least >= 0) return check_whole(name, option.value, option.least);
  if (name == "--padding")
    return check_choice(name, option.value, {"max_length", "longest", "packed"});
  if (name == "--recipe") return check_choice(name, option.value, {"default", "tutorial"});
}

}  // namespace

MethodsArguments parse_methods_arguments(const Arguments& arguments) {
  CLI::App app(kAbout, "lockstep compare");
  MethodsArguments result;
  std::string methods = "all", scaling;
  bool pack = false;
  std::vector<PassedOption> passed = passed_options();
  app.add_option("--data", result.data, "directory or file of labelled texts [built-in sentences]")
      ->type_name("PATH");
  app.add_option("--vocab", result.vocab, "the tokenizer's vocabulary, such as vocab.txt")
      ->type_name("FILE");
  app.add_option("--model", result.model, "mini, base or a model's directory [mini]")
      ->type_name("mini|base|DIR");
  app.add_option("--nproc", result.nproc, "ranks (or devices) of a method [2]");
  app.add_option("--methods", methods, "all, or some with commas between them [all]")
      ->type_name("NAME,...");
  for (PassedOption& option : passed)
    app.add_option(option.name, option.value, option.about)->type_name(option.type);
  app.add_flag("--pack", pack, "the same as --padding packed");
  app.add_flag("--remove-spaces", result.remove_spaces,
               "take the spaces out of every text: for Chinese whose words are cut by spaces");
  app.add_option("--amp", result.amp, "what methods of lower precision compute in [as each has it]")
      ->type_name("bfloat16|float16");
  app.add_option("--scaling", scaling, "also on these numbers of ranks, such as 1,2,4")
      ->type_name("N,...");
  app.add_option("--threads-per-rank", result.threads,
                 "each rank is a device of so many threads [processors / ranks]");
  app.add_option("--timeout", result.timeout, "seconds that a method may take [86400]");
  app.add_option("--output", result.output, "directory for everything [runs/compare]")
      ->type_name("DIR");
  app.add_option("--json", result.json, "also write comparison.json to this file")
      ->type_name("FILE");
  app.add_option("--programs", result.programs, "the directory of the methods' programs")
      ->required()
      ->type_name("DIR");
  cli::add_example(app,
                   {"lockstep compare --programs build/release/bin/examples/text_classification"});
  parse(app, arguments);
  refuse_zeros(app, {"--threads-per-rank"});
  result.methods = parse_methods(methods);
  if (!scaling.empty()) result.scaling = parse_sizes(scaling);
  check_whole("--nproc", std::to_string(result.nproc), 1);
  if (result.nproc > kMostRanks)
    throw InvalidArgument("--nproc is " + std::to_string(result.nproc) + "; give at most " +
                          std::to_string(kMostRanks));
  check_whole("--threads-per-rank", std::to_string(result.threads), 0);
  if (!(result.timeout > 0)) throw InvalidArgument("--timeout must be more than 0 seconds");
  if (!result.amp.empty()) check_choice("--amp", result.amp, {"bfloat16", "float16"});
  for (PassedOption& option : passed) {
    if (pack && option.name == std::string("--padding")) {
      if (!option.value.empty() && option.value != "packed")
        throw InvalidArgument("--pack and --padding " + option.value + " contradict each other");
      option.value = "packed";
    }
    if (option.value.empty()) continue;
    check_passed(option);
    if (option.name == std::string("--recipe")) result.recipe = option.value;
    result.settings.emplace_back(option.name, option.value);
  }
  return result;
}

namespace {

std::vector<std::string> command_of(const TrainingMethod& method, const ComparedJob& job,
                                    const MethodsArguments& arguments,
                                    const std::filesystem::path& lockstep) {
  const std::string nproc = std::to_string(job.nproc);
  std::vector<std::string> command;
  const auto add = [&](const std::string& option, const std::string& value) {
    command.insert(command.end(), {option, value});
  };
  if (method.on_ranks) {
    command = {lockstep.string(), "run"};
    add("--nproc-per-node", nproc);
  }
  command.push_back((std::filesystem::path(arguments.programs) / method.name).string());
  add("--data", arguments.data);
  if (!arguments.vocab.empty()) add("--vocab", arguments.vocab);
  add("--model", arguments.model);
  for (const auto& [option, value] : arguments.settings) add(option, value);
  if (arguments.remove_spaces) command.emplace_back("--remove-spaces");
  if (method.takes_amp && !arguments.amp.empty()) add("--amp", arguments.amp);
  if (method.takes_nproc) add("--nproc", nproc);
  add("--output", job.folder.string());
  add("--json", job.result().string());
  return command;
}

}  // namespace

std::vector<ComparedJob> plan_programs(const MethodsArguments& arguments,
                                       const std::filesystem::path& lockstep) {
  std::vector<ComparedJob> jobs;
  const auto add = [&](const TrainingMethod& method, int64_t nproc, bool for_scaling) {
    ComparedJob& job = jobs.emplace_back(
        ComparedJob{.name = method.name,
                    .tutorial = method.tutorial,
                    .writes = method.name,
                    .nproc = nproc,
                    .for_scaling = for_scaling,
                    .folder = job_folder(arguments.output, method.name, for_scaling ? nproc : 0),
                    .command = {}});
    job.command = command_of(method, job, arguments, lockstep);
  };
  const auto has_ranks = [](const TrainingMethod& method) {
    return method.on_ranks || method.takes_nproc;
  };
  for (const TrainingMethod& method : arguments.methods)
    add(method, has_ranks(method) ? arguments.nproc : 1, false);
  for (const TrainingMethod& method : arguments.methods) {
    if (!has_ranks(method)) continue;
    for (const int64_t size : other_sizes(arguments.scaling, arguments.nproc))
      add(method, size, true);
  }
  return jobs;
}

int compare_programs(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    MethodsArguments parsed = parse_methods_arguments(arguments);
    const auto claim = check_programs_input(parsed);
    Comparison begun = comparison_of_this_machine();
    begun.model = parsed.model;
    begun.data = parsed.built_in ? "sentences" : parsed.data;
    begun.recipe = parsed.recipe == "default" ? "" : parsed.recipe;
    begun.nproc = parsed.nproc;
    begun.threads_per_rank = parsed.threads;
    return run_comparison({.begun = std::move(begun),
                           .jobs = plan_programs(parsed, lockstep_program()),
                           .former_names = compared_names(),
                           .output = parsed.output,
                           .json = parsed.json,
                           .timeout = parsed.timeout});
  });
}

}  // namespace lockstep::engine
