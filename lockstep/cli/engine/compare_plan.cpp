#include "lockstep/cli/engine/compare_plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "lockstep/cli/engine/compare_scaling.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kMostRanks = 1024;
constexpr const char* kOfRanks = "-ranks-";  // in a folder's name
constexpr const char* kAbout =
    "Trains the same model on the same texts in several ways, one after another, and puts them "
    "side "
    "by side: a table, comparison.json, comparison.md and comparison.html with pictures. --scaling "
    "without --methods is another experiment: see lockstep compare --scaling 1,2 --help.";

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
  std::string value = {};
};

std::vector<PassedOption> passed_options() {
  return {{"--recipe",
           "'tutorial' for the tutorial's own settings [those for a model from scratch]", -1},
          {"--max-steps", "end after so many steps", 1},
          {"--epochs", "passes over the training set", 1},
          {"--seed", "of the weights and the order of the texts", 0},
          {"--batch-size", "texts of a rank's step", 1},
          {"--max-length", "tokens of a text, at most", 3},
          {"--padding", "max_length, longest or packed", -1}};
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
  app.add_option("--data", result.data, "directory or file of labelled texts [built-in sentences]");
  app.add_option("--vocab", result.vocab, "the tokenizer's vocabulary, such as vocab.txt");
  app.add_option("--model", result.model, "mini, base or a model's directory [mini]");
  app.add_option("--nproc", result.nproc, "ranks (or devices) of a method [2]");
  app.add_option("--methods", methods, "all, or some with commas between them [all]");
  for (PassedOption& option : passed) app.add_option(option.name, option.value, option.about);
  app.add_flag("--pack", pack, "the same as --padding packed");
  app.add_flag("--remove-spaces", result.remove_spaces,
               "take the spaces out of every text: for Chinese whose words are cut by spaces");
  app.add_option("--amp", result.amp,
                 "what methods of lower precision compute in: bfloat16 or float16");
  app.add_option("--scaling", scaling, "also on these numbers of ranks, such as 1,2,4");
  app.add_option("--threads-per-rank", result.threads,
                 "each rank is a device of so many threads [processors / ranks]");
  app.add_option("--timeout", result.timeout, "seconds that a method may take [86400]");
  app.add_option("--output", result.output, "directory for everything [runs/compare]");
  app.add_option("--json", result.json, "also write comparison.json to this file");
  app.add_option("--programs", result.programs,
                 "the directory of the methods' programs [this installation's]");
  parse(app, arguments);
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

std::vector<MethodJob> plan_jobs(const MethodsArguments& arguments) {
  const std::filesystem::path output = arguments.output;
  std::vector<MethodJob> jobs;
  for (const TrainingMethod& method : arguments.methods) {
    const bool many = method.on_ranks || method.takes_nproc;
    jobs.push_back(
        {.method = method, .nproc = many ? arguments.nproc : 1, .folder = output / method.name});
  }
  std::vector<int64_t> sizes = arguments.scaling;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (const TrainingMethod& method : arguments.methods) {
    if (!method.on_ranks && !method.takes_nproc) continue;
    for (const int64_t size : sizes) {
      if (size == arguments.nproc) continue;
      jobs.push_back(
          {.method = method,
           .nproc = size,
           .for_scaling = true,
           .folder = output / (method.name + std::string(kOfRanks) + std::to_string(size))});
    }
  }
  return jobs;
}

bool is_job_folder(const std::string& name) {
  return std::any_of(
      training_methods().begin(), training_methods().end(), [&name](const TrainingMethod& method) {
        return name == method.name || name.starts_with(method.name + std::string(kOfRanks));
      });
}

std::vector<std::string> job_command(const MethodJob& job, const MethodsArguments& arguments,
                                     const std::filesystem::path& programs,
                                     const std::filesystem::path& lockstep) {
  const std::string nproc = std::to_string(job.nproc);
  std::vector<std::string> command;
  const auto add = [&](const std::string& option, const std::string& value) {
    command.insert(command.end(), {option, value});
  };
  if (job.method.on_ranks) {
    command = {lockstep.string(), "run"};
    add("--nproc-per-node", nproc);
  }
  command.push_back((programs / job.method.name).string());
  add("--data", arguments.data);
  if (!arguments.vocab.empty()) add("--vocab", arguments.vocab);
  add("--model", arguments.model);
  for (const auto& [option, value] : arguments.settings) add(option, value);
  if (arguments.remove_spaces) command.emplace_back("--remove-spaces");
  if (job.method.takes_amp && !arguments.amp.empty()) add("--amp", arguments.amp);
  if (job.method.takes_nproc) add("--nproc", nproc);
  add("--output", job.folder.string());
  add("--json", job.result().string());
  return command;
}

}  // namespace lockstep::engine
