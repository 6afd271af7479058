#include "lockstep/cli/engine/compare/programs.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "lockstep/bench/rows.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/named_file.h"
#include "lockstep/data/sentences.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/launch/agent.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

// An option of every program, as text; a given one is passed on.
struct PassedOption {
  const char* name;
  const char* about;
  int64_t least;  // the least whole number; -1: the value is one of `type`, divided by '|'
  const char* type = "N";
  std::string value = {};

  void check() const {
    const std::string is = std::string(name) + " is '" + value + "'; ";
    if (least >= 0 && !parse_int(value, least))
      throw InvalidArgument(is + "give a whole number of " + std::to_string(least) + " or more");
    if (least < 0 && ("|" + std::string(type) + "|").find("|" + value + "|") == std::string::npos)
      throw InvalidArgument(is + "choose from " + type);
  }
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
           -1, "max_length|longest|packed"},
          {"--amp", "what methods of lower precision compute in [as each has it]", -1,
           "bfloat16|float16"}};
}

// A preset's name, or a Hugging Face directory, whose weights only the programs read.
void check_model(const std::string& model) {
  const auto& presets = bert_preset_names();
  if (std::find(presets.begin(), presets.end(), model) != presets.end()) return;
  const fs::path config =
      fs::path(model).extension() == ".json" ? fs::path(model) : fs::path(model) / "config.json";
  if (!fs::exists(config))
    throw InvalidArgument("--model is '" + model +
                          "'; give mini, base or a directory that has a config.json");
  check(bert_config_from_json(read_named_file(config), config.string()));
}

Arguments command_of(const ComparedProgram& program, const ComparedJob& job,
                     const ProgramsArguments& arguments, const std::string& lockstep) {
  const std::string nproc = std::to_string(job.nproc);
  Arguments command;
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {option, value});
  };
  if (program.on_ranks) command = {lockstep, "run", "--nproc-per-node", nproc};
  command.push_back((fs::path(arguments.folder) / program.name).string());
  add("--data", arguments.data);
  add("--vocab", arguments.vocab);
  add("--model", arguments.model);
  command.insert(command.end(), arguments.passed.begin(), arguments.passed.end());
  if (program.takes_amp) add("--amp", arguments.amp);
  if (program.takes_nproc) add("--nproc", nproc);
  add("--output", job.folder.string());
  add("--json", job.result().string());
  return command;
}

std::vector<ComparedProgram> programs_of(const ProgramsArguments& arguments) {
  const fs::path list = fs::path(arguments.folder) / "programs.json";
  if (!fs::exists(list))
    throw InvalidArgument("there is no " + list.string() +
                          ", which names the programs; give --programs the directory of the built "
                          "programs");
  const auto programs =
      choose_programs(parse_programs(read_named_file(list), list.string()), arguments.methods);
  for (const ComparedProgram& program : programs) {
    const fs::path file = fs::path(arguments.folder) / program.name;
    if (::access(file.c_str(), X_OK) != 0 || fs::is_directory(file))
      throw InvalidArgument("the program of method " + program.name + ", " + file.string() +
                            ", is missing; give --programs the directory of the built programs, "
                            "or --methods those that are there");
  }
  return programs;
}

}  // namespace

std::vector<ComparedProgram> parse_programs(const std::string& text, const std::string& source) {
  const auto json = parse_json(text, source, refuse_as<DataError>);
  std::vector<ComparedProgram> programs;
  for (const auto& one : json) {
    const JsonObject object(one, source, refuse_as<DataError>, "a program");
    const std::string name = object.text("name");
    // Each has a folder of that name.
    const bool is_twice = std::any_of(programs.begin(), programs.end(),
                                      [&](const auto& other) { return other.name == name; });
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name == "data" || is_twice)
      throw DataError(source + ": the program '" + name + "' " +
                      (is_twice ? "is there twice" : "cannot be a folder's name") +
                      "; give each a name of its own");
    programs.push_back({.name = name,
                        .tutorial = object.text("tutorial", ""),
                        .on_ranks = object.flag("ranks", false),
                        .takes_nproc = object.flag("nproc", false),
                        .takes_amp = object.flag("amp", false)});
  }
  if (programs.empty()) throw DataError(source + ": names no program; give one at least");
  return programs;
}

std::vector<ComparedProgram> choose_programs(const std::vector<ComparedProgram>& all,
                                             const std::string& names) {
  if (names == "all") return all;
  std::vector<std::string> choices;
  for (const ComparedProgram& program : all) choices.push_back(program.name);
  const auto wanted = bench::parse_choices("--methods", "method", names, choices);
  std::vector<ComparedProgram> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen), [&](const auto& program) {
    return std::find(wanted.begin(), wanted.end(), program.name) != wanted.end();
  });
  return chosen;
}

ProgramsArguments parse_programs_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains the same model on the same texts with several programs, one after another, and puts "
      "them side by side: a table, comparison.json, comparison.md and comparison.html with "
      "pictures.",
      "lockstep compare");
  ProgramsArguments result;
  std::string scaling;
  bool pack = false, remove_spaces = false;
  std::vector<PassedOption> passed = passed_options();
  app.add_option("--data", result.data, "directory or file of labelled texts [built-in sentences]")
      ->type_name("PATH");
  app.add_option("--vocab", result.vocab, "the tokenizer's vocabulary, such as vocab.txt")
      ->type_name("FILE");
  app.add_option("--model", result.model, "mini, base or a model's directory [mini]")
      ->type_name("mini|base|DIR");
  app.add_option("--nproc", result.nproc, "ranks (or devices) of a method [2]");
  app.add_option("--methods", result.methods, "all, or some with commas between them [all]")
      ->type_name("NAME,...");
  for (PassedOption& option : passed)
    app.add_option(option.name, option.value, option.about)->type_name(option.type);
  app.add_flag("--pack", pack, "the same as --padding packed");
  app.add_flag("--remove-spaces", remove_spaces,
               "take the spaces out of every text: for Chinese whose words are cut by spaces");
  app.add_option("--scaling", scaling, "also on these numbers of ranks, such as 1,2,4")
      ->type_name("N,...");
  app.add_option("--programs", result.folder,
                 "the directory of the programs, and of programs.json, which names them")
      ->required()
      ->type_name("DIR");
  result.common.add_to(app, "a method", "comparison.json");
  cli::add_example(app,
                   {"lockstep compare --programs build/release/bin/examples/text_classification"});
  parse(app, arguments);
  result.common.check(app);
  if (!scaling.empty()) result.scaling = bench::parse_rank_counts("--scaling", scaling);
  if (result.nproc < 1 || result.nproc > launch::kMostRanksOfAHost)
    throw InvalidArgument("--nproc is " + std::to_string(result.nproc) + "; give 1 to " +
                          std::to_string(launch::kMostRanksOfAHost));
  for (PassedOption& option : passed) {
    const std::string name = option.name;
    if (pack && name == "--padding") {
      if (!option.value.empty() && option.value != "packed")
        throw InvalidArgument("--pack and --padding " + option.value + " contradict each other");
      option.value = "packed";
    }
    if (option.value.empty()) continue;
    option.check();
    if (name == "--recipe") result.recipe = option.value;
    if (name == "--amp")
      result.amp = option.value;
    else
      result.passed.insert(result.passed.end(), {name, option.value});
  }
  if (remove_spaces) result.passed.emplace_back("--remove-spaces");
  return result;
}

std::vector<ComparedJob> plan_programs(const std::vector<ComparedProgram>& programs,
                                       const ProgramsArguments& arguments,
                                       const std::string& lockstep) {
  std::vector<ComparedRow> rows;
  for (const ComparedProgram& program : programs)
    rows.push_back({.name = program.name,
                    .tutorial = program.tutorial,
                    .writes = program.name,
                    .has_ranks = program.on_ranks || program.takes_nproc});
  return plan_jobs(rows, arguments.common, arguments.nproc, arguments.scaling,
                   [&](size_t i, const ComparedJob& job) {
                     return command_of(programs[i], job, arguments, lockstep);
                   });
}

int compare_programs(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    ProgramsArguments parsed = parse_programs_arguments(arguments);
    const auto programs = programs_of(parsed);
    const std::string lockstep = lockstep_program();
    check_model(parsed.model);
    if (!parsed.vocab.empty()) (void)tokenizers::BertTokenizer::load(parsed.vocab);  // throws
    if (!parsed.data.empty()) (void)data::text_classification(parsed.data);          // throws, too
    const auto claim = parsed.common.begin(parsed.nproc);
    bench::Comparison begun = begun_comparison(parsed.common, parsed.nproc);
    begun.model = parsed.model;
    begun.data = parsed.data;
    begun.recipe = parsed.recipe == "default" ? "" : parsed.recipe;
    if (parsed.data.empty()) {
      const fs::path folder = fs::path(parsed.common.output) / "data";
      data::generate_sentences(folder);
      begun.data = "sentences";
      parsed.data = folder.string();
      if (parsed.vocab.empty()) parsed.vocab = (folder / "vocab.txt").string();
    }
    return run_comparison(std::move(begun), plan_programs(programs, parsed, lockstep),
                          parsed.common);
  });
}

}  // namespace lockstep::inline v0::engine
